"""Everything about running: settings, telemetry, clients, local stack, migrations, command line."""
