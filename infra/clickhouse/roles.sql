-- Roles, limits and quotas for ClickHouse servers: `drumline roles` prints this for your database, `drumline roles apply`
-- runs it as a user who may create roles. {database}: DRUMLINE_CLICKHOUSE__DATABASE; {cluster}: empty, or ON CLUSTER name.
-- Safe to run again. The local engine gives its readers the grants below, so tests run with them.

-- Migrations, sinks, audit. A server that splits these: docs/guide/security.md.
CREATE ROLE IF NOT EXISTS drumline_writer{cluster};
GRANT{cluster} SHOW, SELECT, INSERT, ALTER, CREATE, DROP, TRUNCATE, OPTIMIZE, BACKUP ON {database}.* TO drumline_writer;
GRANT{cluster} SELECT ON system.tables TO drumline_writer;
GRANT{cluster} SELECT ON system.columns TO drumline_writer;
GRANT{cluster} SELECT ON system.parts TO drumline_writer;
GRANT{cluster} SELECT ON system.backups TO drumline_writer;
-- Of tables that you made replicated.
GRANT{cluster} SELECT ON system.databases TO drumline_writer;
GRANT{cluster} SELECT ON system.merge_tree_settings TO drumline_writer;
GRANT{cluster} SELECT ON system.replicas TO drumline_writer;

-- What every inserting client must have, whatever the server's own defaults are (docs/design/exactly-once.md).
CREATE SETTINGS PROFILE OR REPLACE drumline_writer{cluster} SETTINGS
    async_insert = 0,
    insert_deduplicate = 1,
    deduplicate_blocks_in_dependent_materialized_views = 1,
    distributed_foreground_insert = 1
    TO drumline_writer;

-- Readers: our tables and the catalogue. No table function that reaches outside (file(), url()), no writing. No role
-- is granted to another: a user would have the limits and quotas of both.
CREATE ROLE IF NOT EXISTS drumline_analyst{cluster};
CREATE ROLE IF NOT EXISTS drumline_page{cluster};
CREATE ROLE IF NOT EXISTS drumline_grafana{cluster};
GRANT{cluster} SHOW, SELECT ON {database}.* TO drumline_analyst, drumline_page, drumline_grafana;
GRANT{cluster} SELECT ON system.clusters TO drumline_analyst, drumline_page, drumline_grafana;
GRANT{cluster} SELECT ON system.columns TO drumline_analyst, drumline_page, drumline_grafana;
GRANT{cluster} SELECT ON system.data_skipping_indices TO drumline_analyst, drumline_page, drumline_grafana;
GRANT{cluster} SELECT ON system.data_type_families TO drumline_analyst, drumline_page, drumline_grafana;
GRANT{cluster} SELECT ON system.databases TO drumline_analyst, drumline_page, drumline_grafana;
GRANT{cluster} SELECT ON system.formats TO drumline_analyst, drumline_page, drumline_grafana;
GRANT{cluster} SELECT ON system.functions TO drumline_analyst, drumline_page, drumline_grafana;
GRANT{cluster} SELECT ON system.one TO drumline_analyst, drumline_page, drumline_grafana;
GRANT{cluster} SELECT ON system.parts TO drumline_analyst, drumline_page, drumline_grafana;
GRANT{cluster} SELECT ON system.parts_columns TO drumline_analyst, drumline_page, drumline_grafana;
GRANT{cluster} SELECT ON system.settings TO drumline_analyst, drumline_page, drumline_grafana;
GRANT{cluster} SELECT ON system.tables TO drumline_analyst, drumline_page, drumline_grafana;
GRANT{cluster} SELECT ON system.table_functions TO drumline_analyst, drumline_page, drumline_grafana;
GRANT{cluster} SELECT ON system.time_zones TO drumline_analyst, drumline_page, drumline_grafana;
GRANT{cluster} SELECT ON information_schema.* TO drumline_analyst, drumline_page, drumline_grafana;

-- People, `drumline sql`, `drumline report`. readonly = 2: read, and change settings (clients do) within what MIN, MAX
-- and CONST allow. distributed_product_mode lets the cookbook's subqueries run over a cluster.
CREATE SETTINGS PROFILE OR REPLACE drumline_analyst{cluster} SETTINGS
    readonly = 2,
    allow_ddl = 0 CONST,
    allow_introspection_functions = 0 CONST,
    max_memory_usage = 4000000000 MAX 8000000000,
    max_execution_time = 60 MIN 1 MAX 600,
    max_result_rows = 1000000 MIN 1 MAX 10000000,
    result_overflow_mode = 'throw',
    distributed_product_mode = 'global',
    max_concurrent_queries_for_user = 8 CONST
    TO drumline_analyst;
CREATE QUOTA OR REPLACE drumline_analyst{cluster} KEYED BY user_name
    FOR INTERVAL 1 minute MAX queries = 600, execution_time = 240
    TO drumline_analyst;

-- The web page of `drumline serve`: many tabs must leave people at a terminal their budget.
CREATE SETTINGS PROFILE OR REPLACE drumline_page{cluster} SETTINGS
    readonly = 2,
    allow_ddl = 0 CONST,
    allow_introspection_functions = 0 CONST,
    max_threads = 2 MAX 2,
    max_memory_usage = 2000000000 MAX 2000000000,
    max_execution_time = 30 MIN 1 MAX 60,
    max_result_rows = 1000000 MIN 1 MAX 1000000,
    result_overflow_mode = 'throw',
    distributed_product_mode = 'global',
    max_concurrent_queries_for_user = 8 CONST
    TO drumline_page;
CREATE QUOTA OR REPLACE drumline_page{cluster} KEYED BY user_name
    FOR INTERVAL 1 minute MAX queries = 6000, execution_time = 240
    TO drumline_page;

-- Grafana's data source: shorter queries, and more of them.
CREATE SETTINGS PROFILE OR REPLACE drumline_grafana{cluster} SETTINGS
    readonly = 2,
    allow_ddl = 0 CONST,
    allow_introspection_functions = 0 CONST,
    max_memory_usage = 2000000000 MAX 2000000000,
    max_execution_time = 30 MIN 1 MAX 60,
    max_result_rows = 1000000 MIN 1 MAX 1000000,
    result_overflow_mode = 'throw',
    distributed_product_mode = 'global',
    max_concurrent_queries_for_user = 32 CONST
    TO drumline_grafana;
CREATE QUOTA OR REPLACE drumline_grafana{cluster} KEYED BY user_name
    FOR INTERVAL 1 minute MAX queries = 3000, execution_time = 600
    TO drumline_grafana;
