/* All scenarios: each runs in a process of its own, against servers that were just emptied. */

#ifndef SCENARIOS_H
#define SCENARIOS_H

#define SCENARIOS(DO)                                                                                            \
  DO(handles) DO(handles_of_stack) DO(handles_forked) DO(clones) DO(user_data) DO(allocators) DO(versions) DO(quit_and_reset)       \
  DO(storage_text) DO(storage_binary) DO(storage_by_key) DO(storage_values) DO(storage_cas) DO(storage_expiry)   \
  DO(storage_too_large)                                                                                          \
  DO(get_text) DO(get_binary) DO(get_by_key) DO(get_without_answers)                                             \
  DO(mget_text) DO(mget_binary) DO(mget_by_key) DO(mget_unfinished) DO(mget_several_servers) DO(mget_execute)    \
  DO(fetch_execute) DO(fetch_owned)                                                                              \
  DO(results) DO(results_of_fetch)                                                                               \
  DO(arithmetic_text) DO(arithmetic_binary) DO(arithmetic_by_key) DO(touch_text) DO(touch_binary)                \
  DO(exist_text) DO(exist_binary) DO(delete_text) DO(delete_binary) DO(flush) DO(dump)                           \
  DO(behaviors_defaults) DO(behaviors_flags) DO(behaviors_numbers) DO(behaviors_hashes)                          \
  DO(behaviors_distributions) DO(behaviors_invalid) DO(behaviors_connected) DO(buckets)                          \
  DO(servers_adding) DO(servers_lists) DO(servers_parsing) DO(servers_cursor) DO(servers_by_key)                 \
  DO(servers_instances) DO(servers_sorted) DO(servers_udp) DO(servers_pushed)                                    \
  DO(callbacks) DO(callbacks_triggers) DO(namespaces) DO(encoding_keys) DO(sasl)                                 \
  DO(errors_texts) DO(errors_printed) DO(errors_of_servers) DO(errors_no_servers) DO(errors_dead)                \
  DO(errors_host) DO(errors_silent) DO(errors_keys_text) DO(errors_keys_verified) DO(errors_keys_binary)         \
  DO(errors_null_handles) DO(errors_null_arguments) DO(errors_null_results)                                      \
  DO(stats) DO(stats_execute) DO(stats_analyze) DO(stats_bad)                                                    \
  DO(noreply_text) DO(noreply_binary) DO(buffering_text) DO(buffering_binary) DO(buffering_mixed)                \
  DO(replicas) DO(replicas_dead) DO(ejection) DO(ejection_removed) DO(retry_timeout)                             \
  DO(pools) DO(pools_options) DO(pools_limits) DO(util)                                                          \
  DO(options_checked) DO(options_handles) DO(options_bad)                                                        \
  DO(hashes) DO(hashkit) DO(hashkit_keys) DO(distributions)                                                      \
  DO(random_text) DO(random_binary) DO(random_unbuffered) DO(random_noreply) DO(random_buffered)                 \
  DO(random_consistent) DO(random_ketama) DO(random_namespace) DO(random_replicas) DO(random_noblock)

#define DECLARED(name) void name(void);
SCENARIOS(DECLARED)
#undef DECLARED

#endif
