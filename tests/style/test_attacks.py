"""Each attack that broke drumline once is repeated by a test that exists and runs."""

import ast

import pytest
from glossary import ROOT

END, SINKS, STREAMS = "tests/end_to_end", "tests/sinks", "tests/streams"
AGENT, INFRA, VIEWS, LAB = "tests/producers/agent", "tests/infra", "tests/views", "tests/lab"
CONTROL = "tests/producers/control"
BOUNDS, HOSTILE = "tests/schemas/bounds/test_bounds.py", f"{AGENT}/test_hostile_spool.py"
CONTENT = "test_content_that_takes_memory_or_time_is_rejected"

#: What was done -> the tests that do it.
ATTACKS: dict[str, tuple[str, ...]] = {
    # Halts, lost tails, new topics, clocks
    "a halted worker writes state and results behind its successor": (
        f"{END}/test_halted_worker.py::test_a_halted_worker_changes_no_result",
        f"{STREAMS}/worker/test_changelog_fence.py::"
        "test_recovery_ignores_a_halted_worker_and_names_the_keys_to_write_again",
        f"{SINKS}/audit/test_audit.py::test_results_of_a_halted_worker_change_nothing_also_after_a_restart_of_the_sink",
    ),
    "one of two workers halts on three brokers": (
        f"{LAB}/chaos/test_chaos.py::test_a_chaos_run_that_halts_each_once_has_the_results_of_an_undisturbed_run",
    ),
    "a power loss takes the tail of Kafka's log": (
        f"{END}/test_lost_tail.py::test_records_after_a_power_loss_are_not_skipped",
        f"{END}/test_lost_tail.py::test_a_running_sink_notices_that_kafka_lost_stored_records",
    ),
    "an unclean election loses acknowledged records": (
        f"{END}/test_lost_tail.py::"
        "test_an_unclean_election_that_loses_stored_records_stops_the_sink_and_the_audit_names_it",
    ),
    "a topic is deleted and created anew under load": (
        f"{END}/test_recreated_topics.py::test_a_topic_that_was_missing_when_the_sink_joined_again_is_taken_up",
        f"{SINKS}/kafka/test_coverage.py::test_partitions_that_stay_unread_make_it_subscribe_again",
        f"{STREAMS}/worker/test_worker.py::test_a_recreated_topic_ends_the_worker_and_the_next_one_counts_all_of_it",
    ),
    "a worker's clock is two hours behind or ahead": (
        f"{STREAMS}/worker/test_worker.py::test_a_worker_whose_clock_is_hours_wrong_counts_every_row_and_reports_it",
        f"{INFRA}/kafka/test_topics.py::"
        "test_a_record_is_taken_and_has_the_brokers_time_however_wrong_its_senders_clock_is",
    ),
    # Records
    "a batch of zstd cannot be unpacked": (
        f"{SINKS}/kafka/test_unreadable.py::"
        "test_a_batch_that_cannot_be_unpacked_is_a_dead_letter_and_as_many_records_as_it_has_offsets",
    ),
    "a small batch unpacks to gigabytes in a worker": (
        f"{STREAMS}/worker/faust_patches/test_unpacking.py::"
        "test_a_batch_that_unpacks_to_too_much_is_one_record_without_value",
    ),
    "a small batch unpacks to gigabytes in a sink": (
        f"{SINKS}/kafka/test_unreadable.py::test_large_batches_of_gzip_are_unpacked_one_after_the_other",
    ),
    "names and evidence of megabytes": (
        f"{BOUNDS}::{CONTENT}",
        f"{END}/test_rejected_rows.py::test_a_range_too_large_for_the_servers_memory_is_stored_in_pieces",
    ),
    "rows that ClickHouse rejects": (
        f"{END}/test_rejected_rows.py::"
        "test_the_record_is_a_dead_letter_and_the_others_are_stored_once_whatever_is_killed",
    ),
    "negative ordinals": (
        f"{BOUNDS}::test_numbers_of_columns_outside_their_bounds_are_rejected",
        f"{STREAMS}/core/test_isolation.py::test_negative_ordinals_of_one_job_hide_no_step_of_another",
    ),
    "ordinals near the width of their field": (
        f"{STREAMS}/lateness/test_collective_join.py::test_a_huge_ordinal_without_the_rows_below_it_allocates_nothing",
    ),
    "90,000 windows in a record": (
        f"{BOUNDS}::{CONTENT}",
        f"{STREAMS}/core/test_state_budget.py::test_a_record_of_90000_windows_costs_no_more_than_the_steps_that_are_kept",
    ),
    "300,000 chunks in a record": (
        f"{BOUNDS}::{CONTENT}",
        f"{STREAMS}/core/test_state_budget.py::test_a_record_of_300000_chunks_costs_no_more_than_the_steps_that_are_kept",
    ),
    "other rows under a job's process id": (
        f"{END}/test_sink_kills.py::test_batches_under_a_foreign_process_id_erase_nothing_and_the_audit_names_them",
        f"{STREAMS}/core/test_batch_dedup.py::test_only_a_repetition_with_equal_content_is_a_duplicate",
    ),
    "times of many years": (f"{BOUNDS}::test_times_far_from_the_brokers_are_rejected",),
    "a flood of unreadable records": (
        f"{END}/test_sink_kills.py::test_a_flood_of_poison_stops_no_other_job",
        f"{SINKS}/test_floods.py::test_a_flood_of_one_producer_stops_nothing",
    ),
    "thousands of processes fall silent together": (
        f"{STREAMS}/worker/test_many_processes.py::"
        "test_the_windows_of_processes_that_fell_silent_together_leave_together",
    ),
    "a stage fails for one job": (
        f"{STREAMS}/core/test_isolation.py::test_a_run_whose_state_fails_changes_nothing_for_the_others",
        f"{STREAMS}/core/test_isolation.py::test_state_that_cannot_be_restored_is_dropped_and_the_rest_is_kept",
    ),
    # Spool and agent
    "a folder of the spool is exchanged for a link": (
        f"{HOSTILE}::test_nothing_behind_a_link_in_place_of_a_folder_is_touched",
    ),
    "frames that each claim the rest of a segment": (
        "tests/producers/spool/test_hostile_frames.py::test_frames_that_each_claim_the_rest_are_checked_in_linear_time",
    ),
    "a loss of four thousand million batches": (
        f"{HOSTILE}::test_a_loss_of_more_batches_than_a_process_loses_is_one_record",
    ),
    "a spool that writes verdicts": (f"{HOSTILE}::test_nothing_in_the_spool_is_published_into_a_derived_topic",),
    "junk in the spool": (f"{HOSTILE}::test_junk_in_the_spool_is_counted_but_the_agent_is_ready_all_the_same",),
    "a user lays, links, truncates and floods every file of the spool's root": (
        f"{END}/test_hostile_user.py::"
        "test_a_hostile_user_stops_neither_job_nor_agent_and_nothing_of_root_is_read_or_written",
        f"{CONTROL}/test_shared_file.py::test_a_link_in_place_of_a_file_that_it_writes_is_not_followed",
        f"{CONTROL}/test_shared_file.py::test_a_users_file_in_its_place_is_neither_obeyed_nor_in_its_way",
        f"{CONTROL}/test_waiting_jobs.py::test_a_user_with_thousands_of_announcements_takes_no_place_of_another",
        f"{CONTROL}/test_waiting_jobs.py::test_the_processes_of_one_job_hide_no_other_job_of_their_user",
        "tests/producers/ipc/test_plain_file.py::test_a_link_laid_while_a_folder_is_created_opens_nothing_to_others",
    ),
    "a policy or requests of a user who decides nothing": (
        "tests/producers/ipc/test_plain_file.py::"
        "test_a_policy_and_requests_of_a_foreign_user_do_not_count_and_the_reason_is_stated",
    ),
    "a disk is full under an insert or a merge": (
        f"{INFRA}/localstack/clickhouse/test_failed_writes.py::test_rows_whose_write_failed_are_not_answered_as_stored",
    ),
    # Requests
    "a request with another name than its key, or times that are made up": (
        f"{CONTROL}/test_control_follower.py::"
        "test_the_log_decides_the_order_the_broker_the_time_and_kafkas_key_the_name",
        f"{CONTROL}/test_request_log.py::test_times_that_do_not_belong_together_are_no_request",
    ),
    "thousands of windows of another job, and lists of all ranks": (
        f"{CONTROL}/test_requests_in_force.py::"
        "test_a_flood_of_windows_of_a_job_takes_no_place_of_a_policy_or_of_another_jobs_window",
        f"{CONTROL}/test_requests_in_force.py::"
        "test_the_file_is_never_longer_than_readers_take_and_both_kinds_have_a_place",
    ),
    "a forged answer to a pull": (
        f"{VIEWS}/control/test_pulls.py::test_answers_of_other_hosts_end_nothing_and_take_the_place_of_none",
    ),
    # Readers
    "a table function of Python": (
        f"{INFRA}/localstack/clickhouse/test_engine.py::"
        "test_no_user_ends_the_engine_by_the_table_function_of_python_variables",
    ),
    "terminal escapes in names": (
        f"{INFRA}/runtime/test_terminal.py::test_commands_write_text_by_this_module_only",
        "tests/cli/query/test_sql.py::test_cells_with_control_characters_are_printed_escaped_and_in_full",
        f"{VIEWS}/top/test_top.py::test_names_with_control_characters_are_shown_escaped_in_a_table_that_fits",
    ),
    "control characters in a report": (
        f"{VIEWS}/report/test_report.py::test_names_with_control_characters_are_drawn_and_shown_escaped",
    ),
    "stored names of 200 kB in a message": (
        f"{VIEWS}/report/test_report.py::test_a_message_lists_some_stored_names_and_the_begin_of_long_ones",
    ),
    "a job whose name is SQL": (
        f"{INFRA}/grafana/test_queries.py::"
        "test_variables_choose_the_jobs_and_runs_that_are_shown_whatever_their_names_hold",
    ),
    "many tabs on the pages of live jobs": (
        f"{VIEWS}/serve/test_queries_of_views.py::test_every_view_has_few_queries_a_tick_and_one_set_for_all_tabs",
        f"{VIEWS}/serve/test_views.py::test_pages_are_loaded_again_within_their_share_of_a_core",
        f"{INFRA}/localstack/clickhouse/test_engine.py::test_what_the_page_reads_is_not_counted_against_people",
    ),
    "slow readers of files of the web page": (
        f"{VIEWS}/serve/test_downloads.py::test_all_connections_are_free_while_files_are_read",
        f"{VIEWS}/serve/test_connections.py::"
        "test_a_browser_that_reads_no_answer_is_closed_and_one_that_reads_slowly_is_served",
    ),
    "silent connections to the web page": (
        f"{VIEWS}/serve/test_connections.py::test_a_request_that_never_ends_is_closed_however_often_bytes_come",
        f"{VIEWS}/serve/test_connections.py::test_beyond_the_limit_the_connection_that_waits_longest_goes",
    ),
    "names that a spreadsheet calculates": (
        f"{VIEWS}/sqlshell/test_spreadsheet.py::"
        "test_no_cell_begins_a_formula_wherever_the_answer_is_cut_and_all_others_stay",
        "tests/cli/query/test_sql.py::test_files_of_sql_hold_no_formula",
    ),
    "a password of other letters than ASCII": (
        f"{VIEWS}/serve/test_access.py::test_a_password_of_any_bytes_is_rejected_without_a_traceback",
    ),
    "an answer of 15,000 columns to an agent": (
        f"{VIEWS}/mcp/test_answers.py::test_columns_have_a_size_and_rows_have_no_others",
        f"{VIEWS}/mcp/test_answers.py::test_no_answer_has_more_bytes_than_an_agent_reads_and_what_is_cut_is_named",
    ),
    # Recording and supply
    "a job closes the recorder's descriptors and opens sockets": (
        "tests/producers/collector/test_collector.py::"
        "test_a_job_that_closes_all_descriptors_keeps_its_connections_to_itself",
    ),
    "other packages, other jars": (
        "tests/packaging/test_locks.py::test_everything_is_installed_with_hashes",
        f"{INFRA}/localstack/kafka/test_jars.py::"
        "test_a_jar_that_was_changed_added_or_removed_since_is_found_at_the_next_start",
    ),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_repeated_by_tests_that_run(attack):
    for place in ATTACKS[attack]:
        path, name = place.split("::")
        functions = {node.name: node for node in ast.parse((ROOT / path).read_text()).body if hasattr(node, "name")}
        assert name in functions, place
        assert not {"skip", "xfail"} & {mark.attr for mark in marks(functions[name])}, place


def marks(function: ast.FunctionDef) -> list[ast.Attribute]:
    decorators = [mark.func if isinstance(mark, ast.Call) else mark for mark in function.decorator_list]
    return [mark for mark in decorators if isinstance(mark, ast.Attribute)]
