"""Number of settings, as docs/reference/settings.md lists them."""

from drumline.infra.config.settings import Settings
from drumline.infra.config.unknown_variables import setting_names

#: What one person can read and choose from in half an hour. A number that has one right value is a constant, with its
#: reason, in the module that uses it; what one command needs is its option; what tests need is a parameter.
MOST_SETTINGS = 90


def test_settings_are_few_enough_to_be_read_by_who_runs_drumline():
    assert len(list(setting_names(Settings))) <= MOST_SETTINGS
