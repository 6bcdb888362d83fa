// Prints the ABI of programs compiled against libmemcached's headers: the size of each public struct, the offsets of
// its fields, the value of each constant. `cargo xtask libmemcached` compares that with the recorded text
// (bindings/c/tests/libmemcached/shapes.txt), and a test of fabcache-c compares the recorded text with the library's own.
#include <libmemcached-1.0/memcached.h>
#include <libmemcached-1.0/struct/analysis.h>
#include <libhashkit-1.0/hashkit.h>

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define STRUCT(type) printf("struct %s size %zu align %zu\n", #type, sizeof(struct type), _Alignof(struct type))
#define FIELD(type, field)                                                                                             \
  printf("field %s.%s at %zu size %zu\n", #type, #field, offsetof(struct type, field), sizeof(((struct type *)0)->field))
// Finds the position of a bit field: sets only this field and searches for the bit.
#define BIT(type, field)                                                                                               \
  do {                                                                                                                 \
    struct type value;                                                                                                 \
    memset(&value, 0, sizeof value);                                                                                   \
    value.field = true;                                                                                                \
    print_bit(#type, #field, (const unsigned char *)&value, sizeof value);                                             \
  } while (0)
#define CONSTANT(name) printf("constant %s %lld\n", #name, (long long)(name))
#define TEXT(name) printf("text %s %s\n", #name, name)

static void print_bit(const char *type, const char *field, const unsigned char *bytes, size_t length) {
  for (size_t i = 0; i < length; i++) {
    for (int bit = 0; bit < 8; bit++) {
      if (bytes[i] >> bit & 1) {
        printf("bit %s.%s at %zu bit %d\n", type, field, i, bit);
      }
    }
  }
}

static void print_structs(void) {
  STRUCT(memcached_allocator_t);
  FIELD(memcached_allocator_t, calloc);
  FIELD(memcached_allocator_t, free);
  FIELD(memcached_allocator_t, malloc);
  FIELD(memcached_allocator_t, realloc);
  FIELD(memcached_allocator_t, context);
  STRUCT(memcached_analysis_st);
  FIELD(memcached_analysis_st, root);
  FIELD(memcached_analysis_st, average_item_size);
  FIELD(memcached_analysis_st, longest_uptime);
  FIELD(memcached_analysis_st, least_free_server);
  FIELD(memcached_analysis_st, most_consumed_server);
  FIELD(memcached_analysis_st, oldest_server);
  FIELD(memcached_analysis_st, pool_hit_ratio);
  FIELD(memcached_analysis_st, most_used_bytes);
  FIELD(memcached_analysis_st, least_remaining_bytes);
  STRUCT(memcached_callback_st);
  FIELD(memcached_callback_st, callback);
  FIELD(memcached_callback_st, context);
  FIELD(memcached_callback_st, number_of_callback);
  STRUCT(memcached_st);
  FIELD(memcached_st, state);
  FIELD(memcached_st, flags);
  FIELD(memcached_st, distribution);
  FIELD(memcached_st, hashkit);
  FIELD(memcached_st, server_info);
  FIELD(memcached_st, server_info.version);
  FIELD(memcached_st, number_of_hosts);
  FIELD(memcached_st, servers);
  FIELD(memcached_st, last_disconnected_server);
  FIELD(memcached_st, snd_timeout);
  FIELD(memcached_st, rcv_timeout);
  FIELD(memcached_st, server_failure_limit);
  FIELD(memcached_st, server_timeout_limit);
  FIELD(memcached_st, io_msg_watermark);
  FIELD(memcached_st, io_bytes_watermark);
  FIELD(memcached_st, io_key_prefetch);
  FIELD(memcached_st, tcp_keepidle);
  FIELD(memcached_st, poll_timeout);
  FIELD(memcached_st, connect_timeout);
  FIELD(memcached_st, retry_timeout);
  FIELD(memcached_st, dead_timeout);
  FIELD(memcached_st, send_size);
  FIELD(memcached_st, recv_size);
  FIELD(memcached_st, user_data);
  FIELD(memcached_st, query_id);
  FIELD(memcached_st, number_of_replicas);
  FIELD(memcached_st, result);
  FIELD(memcached_st, ketama);
  FIELD(memcached_st, ketama.weighted_);
  FIELD(memcached_st, ketama.continuum_count);
  FIELD(memcached_st, ketama.continuum_points_counter);
  FIELD(memcached_st, ketama.next_distribution_rebuild);
  FIELD(memcached_st, ketama.continuum);
  FIELD(memcached_st, virtual_bucket);
  FIELD(memcached_st, allocators);
  FIELD(memcached_st, on_clone);
  FIELD(memcached_st, on_cleanup);
  FIELD(memcached_st, get_key_failure);
  FIELD(memcached_st, delete_trigger);
  FIELD(memcached_st, callbacks);
  FIELD(memcached_st, sasl);
  FIELD(memcached_st, error_messages);
  FIELD(memcached_st, _namespace);
  FIELD(memcached_st, configure);
  FIELD(memcached_st, configure.initial_pool_size);
  FIELD(memcached_st, configure.max_pool_size);
  FIELD(memcached_st, configure.version);
  FIELD(memcached_st, configure.filename);
  FIELD(memcached_st, options);
  BIT(memcached_st, state.is_purging);
  BIT(memcached_st, state.is_processing_input);
  BIT(memcached_st, state.is_time_for_rebuild);
  BIT(memcached_st, state.is_parsing);
  BIT(memcached_st, flags.auto_eject_hosts);
  BIT(memcached_st, flags.binary_protocol);
  BIT(memcached_st, flags.buffer_requests);
  BIT(memcached_st, flags.hash_with_namespace);
  BIT(memcached_st, flags.no_block);
  BIT(memcached_st, flags.reply);
  BIT(memcached_st, flags.randomize_replica_read);
  BIT(memcached_st, flags.support_cas);
  BIT(memcached_st, flags.tcp_nodelay);
  BIT(memcached_st, flags.use_sort_hosts);
  BIT(memcached_st, flags.use_udp);
  BIT(memcached_st, flags.verify_key);
  BIT(memcached_st, flags.tcp_keepalive);
  BIT(memcached_st, flags.is_aes);
  BIT(memcached_st, flags.is_fetching_version);
  BIT(memcached_st, flags.not_used);
  BIT(memcached_st, options.is_allocated);
  STRUCT(memcached_result_st);
  FIELD(memcached_result_st, item_flags);
  FIELD(memcached_result_st, item_expiration);
  FIELD(memcached_result_st, key_length);
  FIELD(memcached_result_st, item_cas);
  FIELD(memcached_result_st, root);
  FIELD(memcached_result_st, value);
  FIELD(memcached_result_st, numeric_value);
  FIELD(memcached_result_st, count);
  FIELD(memcached_result_st, item_key);
  FIELD(memcached_result_st, options);
  BIT(memcached_result_st, options.is_allocated);
  BIT(memcached_result_st, options.is_initialized);
  STRUCT(memcached_sasl_st);
  FIELD(memcached_sasl_st, callbacks);
  FIELD(memcached_sasl_st, is_allocated);
  STRUCT(memcached_server_st);
  FIELD(memcached_server_st, options);
  FIELD(memcached_server_st, number_of_hosts);
  FIELD(memcached_server_st, cursor_active);
  FIELD(memcached_server_st, port);
  FIELD(memcached_server_st, io_bytes_sent);
  FIELD(memcached_server_st, request_id);
  FIELD(memcached_server_st, server_failure_counter);
  FIELD(memcached_server_st, server_failure_counter_query_id);
  FIELD(memcached_server_st, server_timeout_counter);
  FIELD(memcached_server_st, server_timeout_counter_query_id);
  FIELD(memcached_server_st, weight);
  FIELD(memcached_server_st, version);
  FIELD(memcached_server_st, state);
  FIELD(memcached_server_st, io_wait_count);
  FIELD(memcached_server_st, io_wait_count.read);
  FIELD(memcached_server_st, io_wait_count.write);
  FIELD(memcached_server_st, io_wait_count.timeouts);
  FIELD(memcached_server_st, io_wait_count._bytes_read);
  FIELD(memcached_server_st, major_version);
  FIELD(memcached_server_st, micro_version);
  FIELD(memcached_server_st, minor_version);
  FIELD(memcached_server_st, type);
  FIELD(memcached_server_st, next_retry);
  FIELD(memcached_server_st, root);
  FIELD(memcached_server_st, limit_maxbytes);
  FIELD(memcached_server_st, error_messages);
  FIELD(memcached_server_st, hostname);
  BIT(memcached_server_st, options.is_allocated);
  BIT(memcached_server_st, options.is_initialized);
  BIT(memcached_server_st, options.is_shutting_down);
  BIT(memcached_server_st, options.is_dead);
  STRUCT(memcached_stat_st);
  FIELD(memcached_stat_st, connection_structures);
  FIELD(memcached_stat_st, curr_connections);
  FIELD(memcached_stat_st, curr_items);
  FIELD(memcached_stat_st, pid);
  FIELD(memcached_stat_st, pointer_size);
  FIELD(memcached_stat_st, rusage_system_microseconds);
  FIELD(memcached_stat_st, rusage_system_seconds);
  FIELD(memcached_stat_st, rusage_user_microseconds);
  FIELD(memcached_stat_st, rusage_user_seconds);
  FIELD(memcached_stat_st, threads);
  FIELD(memcached_stat_st, time);
  FIELD(memcached_stat_st, total_connections);
  FIELD(memcached_stat_st, total_items);
  FIELD(memcached_stat_st, uptime);
  FIELD(memcached_stat_st, bytes);
  FIELD(memcached_stat_st, bytes_read);
  FIELD(memcached_stat_st, bytes_written);
  FIELD(memcached_stat_st, cmd_get);
  FIELD(memcached_stat_st, cmd_set);
  FIELD(memcached_stat_st, evictions);
  FIELD(memcached_stat_st, get_hits);
  FIELD(memcached_stat_st, get_misses);
  FIELD(memcached_stat_st, limit_maxbytes);
  FIELD(memcached_stat_st, version);
  FIELD(memcached_stat_st, __future);
  FIELD(memcached_stat_st, root);
  STRUCT(memcached_string_st);
  FIELD(memcached_string_st, end);
  FIELD(memcached_string_st, string);
  FIELD(memcached_string_st, current_size);
  FIELD(memcached_string_st, root);
  FIELD(memcached_string_st, options);
  BIT(memcached_string_st, options.is_allocated);
  BIT(memcached_string_st, options.is_initialized);
  STRUCT(hashkit_st);
  FIELD(hashkit_st, base_hash);
  FIELD(hashkit_st, base_hash.function);
  FIELD(hashkit_st, base_hash.context);
  FIELD(hashkit_st, distribution_hash);
  FIELD(hashkit_st, distribution_hash.function);
  FIELD(hashkit_st, distribution_hash.context);
  FIELD(hashkit_st, flags);
  FIELD(hashkit_st, options);
  FIELD(hashkit_st, _key);
  BIT(hashkit_st, flags.is_base_same_distributed);
  BIT(hashkit_st, options.is_allocated);
}

static void print_constants(void) {
  CONSTANT(MEMCACHED_BEHAVIOR_NO_BLOCK);
  CONSTANT(MEMCACHED_BEHAVIOR_TCP_NODELAY);
  CONSTANT(MEMCACHED_BEHAVIOR_HASH);
  CONSTANT(MEMCACHED_BEHAVIOR_KETAMA);
  CONSTANT(MEMCACHED_BEHAVIOR_SOCKET_SEND_SIZE);
  CONSTANT(MEMCACHED_BEHAVIOR_SOCKET_RECV_SIZE);
  CONSTANT(MEMCACHED_BEHAVIOR_CACHE_LOOKUPS);
  CONSTANT(MEMCACHED_BEHAVIOR_SUPPORT_CAS);
  CONSTANT(MEMCACHED_BEHAVIOR_POLL_TIMEOUT);
  CONSTANT(MEMCACHED_BEHAVIOR_DISTRIBUTION);
  CONSTANT(MEMCACHED_BEHAVIOR_BUFFER_REQUESTS);
  CONSTANT(MEMCACHED_BEHAVIOR_USER_DATA);
  CONSTANT(MEMCACHED_BEHAVIOR_SORT_HOSTS);
  CONSTANT(MEMCACHED_BEHAVIOR_VERIFY_KEY);
  CONSTANT(MEMCACHED_BEHAVIOR_CONNECT_TIMEOUT);
  CONSTANT(MEMCACHED_BEHAVIOR_RETRY_TIMEOUT);
  CONSTANT(MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED);
  CONSTANT(MEMCACHED_BEHAVIOR_KETAMA_HASH);
  CONSTANT(MEMCACHED_BEHAVIOR_BINARY_PROTOCOL);
  CONSTANT(MEMCACHED_BEHAVIOR_SND_TIMEOUT);
  CONSTANT(MEMCACHED_BEHAVIOR_RCV_TIMEOUT);
  CONSTANT(MEMCACHED_BEHAVIOR_SERVER_FAILURE_LIMIT);
  CONSTANT(MEMCACHED_BEHAVIOR_IO_MSG_WATERMARK);
  CONSTANT(MEMCACHED_BEHAVIOR_IO_BYTES_WATERMARK);
  CONSTANT(MEMCACHED_BEHAVIOR_IO_KEY_PREFETCH);
  CONSTANT(MEMCACHED_BEHAVIOR_HASH_WITH_PREFIX_KEY);
  CONSTANT(MEMCACHED_BEHAVIOR_NOREPLY);
  CONSTANT(MEMCACHED_BEHAVIOR_USE_UDP);
  CONSTANT(MEMCACHED_BEHAVIOR_AUTO_EJECT_HOSTS);
  CONSTANT(MEMCACHED_BEHAVIOR_NUMBER_OF_REPLICAS);
  CONSTANT(MEMCACHED_BEHAVIOR_RANDOMIZE_REPLICA_READ);
  CONSTANT(MEMCACHED_BEHAVIOR_CORK);
  CONSTANT(MEMCACHED_BEHAVIOR_TCP_KEEPALIVE);
  CONSTANT(MEMCACHED_BEHAVIOR_TCP_KEEPIDLE);
  CONSTANT(MEMCACHED_BEHAVIOR_LOAD_FROM_FILE);
  CONSTANT(MEMCACHED_BEHAVIOR_REMOVE_FAILED_SERVERS);
  CONSTANT(MEMCACHED_BEHAVIOR_DEAD_TIMEOUT);
  CONSTANT(MEMCACHED_BEHAVIOR_SERVER_TIMEOUT_LIMIT);
  CONSTANT(MEMCACHED_BEHAVIOR_MAX);
  CONSTANT(MEMCACHED_CALLBACK_PREFIX_KEY);
  CONSTANT(MEMCACHED_CALLBACK_USER_DATA);
  CONSTANT(MEMCACHED_CALLBACK_CLEANUP_FUNCTION);
  CONSTANT(MEMCACHED_CALLBACK_CLONE_FUNCTION);
  CONSTANT(MEMCACHED_CALLBACK_GET_FAILURE);
  CONSTANT(MEMCACHED_CALLBACK_DELETE_TRIGGER);
  CONSTANT(MEMCACHED_CALLBACK_MAX);
  CONSTANT(MEMCACHED_CALLBACK_NAMESPACE);
  CONSTANT(MEMCACHED_CONNECTION_TCP);
  CONSTANT(MEMCACHED_CONNECTION_UDP);
  CONSTANT(MEMCACHED_CONNECTION_UNIX_SOCKET);
  CONSTANT(MEMCACHED_HASH_DEFAULT);
  CONSTANT(MEMCACHED_HASH_MD5);
  CONSTANT(MEMCACHED_HASH_CRC);
  CONSTANT(MEMCACHED_HASH_FNV1_64);
  CONSTANT(MEMCACHED_HASH_FNV1A_64);
  CONSTANT(MEMCACHED_HASH_FNV1_32);
  CONSTANT(MEMCACHED_HASH_FNV1A_32);
  CONSTANT(MEMCACHED_HASH_HSIEH);
  CONSTANT(MEMCACHED_HASH_MURMUR);
  CONSTANT(MEMCACHED_HASH_JENKINS);
  CONSTANT(MEMCACHED_HASH_MURMUR3);
  CONSTANT(MEMCACHED_HASH_CUSTOM);
  CONSTANT(MEMCACHED_HASH_MAX);
  CONSTANT(MEMCACHED_SUCCESS);
  CONSTANT(MEMCACHED_FAILURE);
  CONSTANT(MEMCACHED_HOST_LOOKUP_FAILURE);
  CONSTANT(MEMCACHED_CONNECTION_FAILURE);
  CONSTANT(MEMCACHED_CONNECTION_BIND_FAILURE);
  CONSTANT(MEMCACHED_WRITE_FAILURE);
  CONSTANT(MEMCACHED_READ_FAILURE);
  CONSTANT(MEMCACHED_UNKNOWN_READ_FAILURE);
  CONSTANT(MEMCACHED_PROTOCOL_ERROR);
  CONSTANT(MEMCACHED_CLIENT_ERROR);
  CONSTANT(MEMCACHED_SERVER_ERROR);
  CONSTANT(MEMCACHED_ERROR);
  CONSTANT(MEMCACHED_DATA_EXISTS);
  CONSTANT(MEMCACHED_DATA_DOES_NOT_EXIST);
  CONSTANT(MEMCACHED_NOTSTORED);
  CONSTANT(MEMCACHED_STORED);
  CONSTANT(MEMCACHED_NOTFOUND);
  CONSTANT(MEMCACHED_MEMORY_ALLOCATION_FAILURE);
  CONSTANT(MEMCACHED_PARTIAL_READ);
  CONSTANT(MEMCACHED_SOME_ERRORS);
  CONSTANT(MEMCACHED_NO_SERVERS);
  CONSTANT(MEMCACHED_END);
  CONSTANT(MEMCACHED_DELETED);
  CONSTANT(MEMCACHED_VALUE);
  CONSTANT(MEMCACHED_STAT);
  CONSTANT(MEMCACHED_ITEM);
  CONSTANT(MEMCACHED_ERRNO);
  CONSTANT(MEMCACHED_FAIL_UNIX_SOCKET);
  CONSTANT(MEMCACHED_NOT_SUPPORTED);
  CONSTANT(MEMCACHED_NO_KEY_PROVIDED);
  CONSTANT(MEMCACHED_FETCH_NOTFINISHED);
  CONSTANT(MEMCACHED_TIMEOUT);
  CONSTANT(MEMCACHED_BUFFERED);
  CONSTANT(MEMCACHED_BAD_KEY_PROVIDED);
  CONSTANT(MEMCACHED_INVALID_HOST_PROTOCOL);
  CONSTANT(MEMCACHED_SERVER_MARKED_DEAD);
  CONSTANT(MEMCACHED_UNKNOWN_STAT_KEY);
  CONSTANT(MEMCACHED_E2BIG);
  CONSTANT(MEMCACHED_INVALID_ARGUMENTS);
  CONSTANT(MEMCACHED_KEY_TOO_BIG);
  CONSTANT(MEMCACHED_AUTH_PROBLEM);
  CONSTANT(MEMCACHED_AUTH_FAILURE);
  CONSTANT(MEMCACHED_AUTH_CONTINUE);
  CONSTANT(MEMCACHED_PARSE_ERROR);
  CONSTANT(MEMCACHED_PARSE_USER_ERROR);
  CONSTANT(MEMCACHED_DEPRECATED);
  CONSTANT(MEMCACHED_IN_PROGRESS);
  CONSTANT(MEMCACHED_SERVER_TEMPORARILY_DISABLED);
  CONSTANT(MEMCACHED_SERVER_MEMORY_ALLOCATION_FAILURE);
  CONSTANT(MEMCACHED_MAXIMUM_RETURN);
  CONSTANT(MEMCACHED_CONNECTION_SOCKET_CREATE_FAILURE);
  CONSTANT(MEMCACHED_DISTRIBUTION_MODULA);
  CONSTANT(MEMCACHED_DISTRIBUTION_CONSISTENT);
  CONSTANT(MEMCACHED_DISTRIBUTION_CONSISTENT_KETAMA);
  CONSTANT(MEMCACHED_DISTRIBUTION_RANDOM);
  CONSTANT(MEMCACHED_DISTRIBUTION_CONSISTENT_KETAMA_SPY);
  CONSTANT(MEMCACHED_DISTRIBUTION_CONSISTENT_WEIGHTED);
  CONSTANT(MEMCACHED_DISTRIBUTION_VIRTUAL_BUCKET);
  CONSTANT(MEMCACHED_DISTRIBUTION_CONSISTENT_MAX);
  CONSTANT(MEMCACHED_SERVER_STATE_NEW);
  CONSTANT(MEMCACHED_SERVER_STATE_ADDRINFO);
  CONSTANT(MEMCACHED_SERVER_STATE_IN_PROGRESS);
  CONSTANT(MEMCACHED_SERVER_STATE_CONNECTED);
  CONSTANT(MEMCACHED_SERVER_STATE_IN_TIMEOUT);
  CONSTANT(MEMCACHED_SERVER_STATE_DISABLED);
  CONSTANT(HASHKIT_SUCCESS);
  CONSTANT(HASHKIT_FAILURE);
  CONSTANT(HASHKIT_MEMORY_ALLOCATION_FAILURE);
  CONSTANT(HASHKIT_INVALID_HASH);
  CONSTANT(HASHKIT_INVALID_ARGUMENT);
  CONSTANT(HASHKIT_MAXIMUM_RETURN);
  CONSTANT(HASHKIT_HASH_DEFAULT);
  CONSTANT(HASHKIT_HASH_MD5);
  CONSTANT(HASHKIT_HASH_CRC);
  CONSTANT(HASHKIT_HASH_FNV1_64);
  CONSTANT(HASHKIT_HASH_FNV1A_64);
  CONSTANT(HASHKIT_HASH_FNV1_32);
  CONSTANT(HASHKIT_HASH_FNV1A_32);
  CONSTANT(HASHKIT_HASH_HSIEH);
  CONSTANT(HASHKIT_HASH_MURMUR);
  CONSTANT(HASHKIT_HASH_JENKINS);
  CONSTANT(HASHKIT_HASH_MURMUR3);
  CONSTANT(HASHKIT_HASH_CUSTOM);
  CONSTANT(HASHKIT_HASH_MAX);
  CONSTANT(HASHKIT_DISTRIBUTION_MODULA);
  CONSTANT(HASHKIT_DISTRIBUTION_RANDOM);
  CONSTANT(HASHKIT_DISTRIBUTION_KETAMA);
  CONSTANT(HASHKIT_DISTRIBUTION_MAX);
  CONSTANT(MEMCACHED_MAX_BUFFER);
  CONSTANT(MEMCACHED_MAX_KEY);
  CONSTANT(MEMCACHED_MAX_NAMESPACE);
  CONSTANT(MEMCACHED_MAX_HOST_SORT_LENGTH);
  CONSTANT(MEMCACHED_MAX_INTEGER_DISPLAY_LENGTH);
  CONSTANT(MEMCACHED_VERSION_STRING_LENGTH);
  CONSTANT(MEMCACHED_MAXIMUM_INTEGER_DISPLAY_LENGTH);
  CONSTANT(MEMCACHED_PREFIX_KEY_MAX_SIZE);
  CONSTANT(LIBMEMCACHED_ENABLE_DEPRECATED);
  CONSTANT(LIBMEMCACHED_WITH_SASL_SUPPORT);
  CONSTANT(LIBMEMCACHED_AWESOME);
  CONSTANT(LIBMEMCACHED_VERSION_HEX);
  CONSTANT(MEMCACHED_DEFAULT_PORT);
  CONSTANT(MEMCACHED_POINTS_PER_SERVER);
  CONSTANT(MEMCACHED_POINTS_PER_SERVER_KETAMA);
  CONSTANT(MEMCACHED_CONTINUUM_SIZE);
  CONSTANT(MEMCACHED_STRIDE);
  CONSTANT(MEMCACHED_DEFAULT_TIMEOUT);
  CONSTANT(MEMCACHED_DEFAULT_CONNECT_TIMEOUT);
  CONSTANT(MEMCACHED_CONTINUUM_ADDITION);
  CONSTANT(MEMCACHED_EXPIRATION_NOT_ADD);
  CONSTANT(MEMCACHED_SERVER_FAILURE_LIMIT);
  CONSTANT(MEMCACHED_SERVER_FAILURE_RETRY_TIMEOUT);
  CONSTANT(MEMCACHED_SERVER_FAILURE_DEAD_TIMEOUT);
  CONSTANT(MEMCACHED_SERVER_TIMEOUT_LIMIT);
  CONSTANT(LIBHASHKIT_VERSION_HEX);
  CONSTANT(MEMCACHED_NI_MAXHOST);
  CONSTANT(MEMCACHED_NI_MAXSERV);
  TEXT(LIBMEMCACHED_VERSION_STRING);
  TEXT(MEMCACHED_DEFAULT_PORT_STRING);
  TEXT(LIBHASHKIT_VERSION_STRING);
}

int main(void) {
  print_structs();
  print_constants();
  return 0;
}
