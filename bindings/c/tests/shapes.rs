//! The library's structures and constants match those recorded from libmemcached's headers.

use std::collections::BTreeMap;
use std::mem::offset_of;

use fabcache::libmemcached::*;

const RECORDED: &str = include_str!("libmemcached/shapes.txt");

fn size_of_field<T, F>(_: impl Fn(&T) -> &F) -> usize {
    size_of::<F>()
}

macro_rules! shape {
    ($found:ident, $type:ident { $($($field:ident).+ $(as $name:literal)?),* $(,)? }) => {
        $found.insert(
            format!("struct {}", stringify!($type)),
            format!("size {} align {}", size_of::<$type>(), align_of::<$type>()),
        );
        $(
            let name = [$($name,)? concat!($("." , stringify!($field)),+)][0].trim_start_matches('.');
            $found.insert(
                format!("field {}.{name}", stringify!($type)),
                format!(
                    "at {} size {}",
                    offset_of!($type, $($field).+),
                    size_of_field(|of: &$type| &of.$($field).+),
                ),
            );
        )*
    };
}

/// Returns every structure and field, by its recorded name.
fn shapes() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    handle_shapes(&mut found);
    server_shapes(&mut found);
    statistics_shapes(&mut found);
    result_shapes(&mut found);
    found
}

fn handle_shapes(found: &mut BTreeMap<String, String>) {
    shape!(found, memcached_allocator_t { calloc, free, malloc, realloc, context });
    shape!(found, memcached_st {
        state,
        flags,
        distribution,
        hashkit,
        server_version as "server_info.version",
        number_of_hosts,
        servers,
        last_disconnected_server,
        snd_timeout,
        rcv_timeout,
        server_failure_limit,
        server_timeout_limit,
        io_msg_watermark,
        io_bytes_watermark,
        io_key_prefetch,
        tcp_keepidle,
        poll_timeout,
        connect_timeout,
        retry_timeout,
        dead_timeout,
        send_size,
        recv_size,
        user_data,
        query_id,
        number_of_replicas,
        result,
        ketama,
        ketama.weighted as "ketama.weighted_",
        ketama.continuum_count,
        ketama.continuum_points_counter,
        ketama.next_distribution_rebuild,
        ketama.continuum,
        virtual_bucket,
        allocators,
        on_clone,
        on_cleanup,
        get_key_failure,
        delete_trigger,
        callbacks,
        sasl,
        error_messages,
        namespace as "_namespace",
        configure,
        configure.initial_pool_size,
        configure.max_pool_size,
        configure.version,
        configure.filename,
        options,
    });
    shape!(found, hashkit_st {
        base_hash,
        base_hash.function,
        base_hash.context,
        distribution_hash,
        distribution_hash.function,
        distribution_hash.context,
        flags,
        options,
        key as "_key",
    });
}

fn server_shapes(found: &mut BTreeMap<String, String>) {
    shape!(
        found,
        memcached_analysis_st {
            root,
            average_item_size,
            longest_uptime,
            least_free_server,
            most_consumed_server,
            oldest_server,
            pool_hit_ratio,
            most_used_bytes,
            least_remaining_bytes,
        }
    );
    shape!(found, memcached_server_st {
        options,
        number_of_hosts,
        cursor_active,
        port,
        io_bytes_sent,
        request_id,
        server_failure_counter,
        server_failure_counter_query_id,
        server_timeout_counter,
        server_timeout_counter_query_id,
        weight,
        version,
        state,
        io_wait_count,
        io_wait_count.read,
        io_wait_count.write,
        io_wait_count.timeouts,
        io_wait_count.bytes_read as "io_wait_count._bytes_read",
        major_version,
        micro_version,
        minor_version,
        type_ as "type",
        next_retry,
        root,
        limit_maxbytes,
        error_messages,
        hostname,
    });
}

fn statistics_shapes(found: &mut BTreeMap<String, String>) {
    shape!(found, memcached_stat_st {
        connection_structures,
        curr_connections,
        curr_items,
        pid,
        pointer_size,
        rusage_system_microseconds,
        rusage_system_seconds,
        rusage_user_microseconds,
        rusage_user_seconds,
        threads,
        time,
        total_connections,
        total_items,
        uptime,
        bytes,
        bytes_read,
        bytes_written,
        cmd_get,
        cmd_set,
        evictions,
        get_hits,
        get_misses,
        limit_maxbytes,
        version,
        future as "__future",
        root,
    });
}

fn result_shapes(found: &mut BTreeMap<String, String>) {
    shape!(found, memcached_callback_st { callback, context, number_of_callback });
    shape!(
        found,
        memcached_result_st {
            item_flags,
            item_expiration,
            key_length,
            item_cas,
            root,
            value,
            numeric_value,
            count,
            item_key,
            options,
        }
    );
    shape!(found, memcached_sasl_st { callbacks, is_allocated });
    shape!(found, memcached_string_st { end, string, current_size, root, options });
}

macro_rules! constants {
    ($($name:ident,)*) => {
        [$((stringify!($name), $name as i64),)*]
    };
}

/// Returns every constant that the library uses.
fn constants() -> BTreeMap<&'static str, i64> {
    [behaviours(), return_codes(), hashkit_constants(), other_constants()].into_iter().flatten().collect()
}

/// Behaviours and callbacks.
fn behaviours() -> Vec<(&'static str, i64)> {
    constants![
        MEMCACHED_BEHAVIOR_NO_BLOCK,
        MEMCACHED_BEHAVIOR_TCP_NODELAY,
        MEMCACHED_BEHAVIOR_HASH,
        MEMCACHED_BEHAVIOR_KETAMA,
        MEMCACHED_BEHAVIOR_SOCKET_SEND_SIZE,
        MEMCACHED_BEHAVIOR_SOCKET_RECV_SIZE,
        MEMCACHED_BEHAVIOR_CACHE_LOOKUPS,
        MEMCACHED_BEHAVIOR_SUPPORT_CAS,
        MEMCACHED_BEHAVIOR_POLL_TIMEOUT,
        MEMCACHED_BEHAVIOR_DISTRIBUTION,
        MEMCACHED_BEHAVIOR_BUFFER_REQUESTS,
        MEMCACHED_BEHAVIOR_USER_DATA,
        MEMCACHED_BEHAVIOR_SORT_HOSTS,
        MEMCACHED_BEHAVIOR_VERIFY_KEY,
        MEMCACHED_BEHAVIOR_CONNECT_TIMEOUT,
        MEMCACHED_BEHAVIOR_RETRY_TIMEOUT,
        MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED,
        MEMCACHED_BEHAVIOR_KETAMA_HASH,
        MEMCACHED_BEHAVIOR_BINARY_PROTOCOL,
        MEMCACHED_BEHAVIOR_SND_TIMEOUT,
        MEMCACHED_BEHAVIOR_RCV_TIMEOUT,
        MEMCACHED_BEHAVIOR_SERVER_FAILURE_LIMIT,
        MEMCACHED_BEHAVIOR_IO_MSG_WATERMARK,
        MEMCACHED_BEHAVIOR_IO_BYTES_WATERMARK,
        MEMCACHED_BEHAVIOR_IO_KEY_PREFETCH,
        MEMCACHED_BEHAVIOR_HASH_WITH_PREFIX_KEY,
        MEMCACHED_BEHAVIOR_NOREPLY,
        MEMCACHED_BEHAVIOR_USE_UDP,
        MEMCACHED_BEHAVIOR_AUTO_EJECT_HOSTS,
        MEMCACHED_BEHAVIOR_NUMBER_OF_REPLICAS,
        MEMCACHED_BEHAVIOR_RANDOMIZE_REPLICA_READ,
        MEMCACHED_BEHAVIOR_CORK,
        MEMCACHED_BEHAVIOR_TCP_KEEPALIVE,
        MEMCACHED_BEHAVIOR_TCP_KEEPIDLE,
        MEMCACHED_BEHAVIOR_LOAD_FROM_FILE,
        MEMCACHED_BEHAVIOR_REMOVE_FAILED_SERVERS,
        MEMCACHED_BEHAVIOR_DEAD_TIMEOUT,
        MEMCACHED_BEHAVIOR_SERVER_TIMEOUT_LIMIT,
        MEMCACHED_BEHAVIOR_MAX,
        MEMCACHED_CALLBACK_PREFIX_KEY,
        MEMCACHED_CALLBACK_USER_DATA,
        MEMCACHED_CALLBACK_CLEANUP_FUNCTION,
        MEMCACHED_CALLBACK_CLONE_FUNCTION,
        MEMCACHED_CALLBACK_GET_FAILURE,
        MEMCACHED_CALLBACK_DELETE_TRIGGER,
        MEMCACHED_CALLBACK_MAX,
        MEMCACHED_CALLBACK_NAMESPACE,
    ]
    .into()
}

/// libmemcached's return codes.
fn return_codes() -> Vec<(&'static str, i64)> {
    constants![
        MEMCACHED_SUCCESS,
        MEMCACHED_FAILURE,
        MEMCACHED_HOST_LOOKUP_FAILURE,
        MEMCACHED_CONNECTION_FAILURE,
        MEMCACHED_CONNECTION_BIND_FAILURE,
        MEMCACHED_WRITE_FAILURE,
        MEMCACHED_READ_FAILURE,
        MEMCACHED_UNKNOWN_READ_FAILURE,
        MEMCACHED_PROTOCOL_ERROR,
        MEMCACHED_CLIENT_ERROR,
        MEMCACHED_SERVER_ERROR,
        MEMCACHED_ERROR,
        MEMCACHED_DATA_EXISTS,
        MEMCACHED_DATA_DOES_NOT_EXIST,
        MEMCACHED_NOTSTORED,
        MEMCACHED_STORED,
        MEMCACHED_NOTFOUND,
        MEMCACHED_MEMORY_ALLOCATION_FAILURE,
        MEMCACHED_PARTIAL_READ,
        MEMCACHED_SOME_ERRORS,
        MEMCACHED_NO_SERVERS,
        MEMCACHED_END,
        MEMCACHED_DELETED,
        MEMCACHED_VALUE,
        MEMCACHED_STAT,
        MEMCACHED_ITEM,
        MEMCACHED_ERRNO,
        MEMCACHED_FAIL_UNIX_SOCKET,
        MEMCACHED_NOT_SUPPORTED,
        MEMCACHED_NO_KEY_PROVIDED,
        MEMCACHED_FETCH_NOTFINISHED,
        MEMCACHED_TIMEOUT,
        MEMCACHED_BUFFERED,
        MEMCACHED_BAD_KEY_PROVIDED,
        MEMCACHED_INVALID_HOST_PROTOCOL,
        MEMCACHED_SERVER_MARKED_DEAD,
        MEMCACHED_UNKNOWN_STAT_KEY,
        MEMCACHED_E2BIG,
        MEMCACHED_INVALID_ARGUMENTS,
        MEMCACHED_KEY_TOO_BIG,
        MEMCACHED_AUTH_PROBLEM,
        MEMCACHED_AUTH_FAILURE,
        MEMCACHED_AUTH_CONTINUE,
        MEMCACHED_PARSE_ERROR,
        MEMCACHED_PARSE_USER_ERROR,
        MEMCACHED_DEPRECATED,
        MEMCACHED_IN_PROGRESS,
        MEMCACHED_SERVER_TEMPORARILY_DISABLED,
        MEMCACHED_SERVER_MEMORY_ALLOCATION_FAILURE,
        MEMCACHED_MAXIMUM_RETURN,
        MEMCACHED_CONNECTION_SOCKET_CREATE_FAILURE,
    ]
    .into()
}

/// libhashkit's return codes and hash functions.
fn hashkit_constants() -> Vec<(&'static str, i64)> {
    constants![
        HASHKIT_SUCCESS,
        HASHKIT_FAILURE,
        HASHKIT_MEMORY_ALLOCATION_FAILURE,
        HASHKIT_INVALID_HASH,
        HASHKIT_INVALID_ARGUMENT,
        HASHKIT_MAXIMUM_RETURN,
        HASHKIT_HASH_DEFAULT,
        HASHKIT_HASH_MD5,
        HASHKIT_HASH_CRC,
        HASHKIT_HASH_FNV1_64,
        HASHKIT_HASH_FNV1A_64,
        HASHKIT_HASH_FNV1_32,
        HASHKIT_HASH_FNV1A_32,
        HASHKIT_HASH_HSIEH,
        HASHKIT_HASH_MURMUR,
        HASHKIT_HASH_JENKINS,
        HASHKIT_HASH_MURMUR3,
        HASHKIT_HASH_CUSTOM,
        HASHKIT_HASH_MAX,
    ]
    .into()
}

/// Connection types, hash functions, distributions, server states and limits.
fn other_constants() -> Vec<(&'static str, i64)> {
    constants![
        MEMCACHED_CONNECTION_TCP,
        MEMCACHED_CONNECTION_UDP,
        MEMCACHED_CONNECTION_UNIX_SOCKET,
        MEMCACHED_HASH_DEFAULT,
        MEMCACHED_HASH_MD5,
        MEMCACHED_HASH_CRC,
        MEMCACHED_HASH_FNV1_64,
        MEMCACHED_HASH_FNV1A_64,
        MEMCACHED_HASH_FNV1_32,
        MEMCACHED_HASH_FNV1A_32,
        MEMCACHED_HASH_HSIEH,
        MEMCACHED_HASH_MURMUR,
        MEMCACHED_HASH_JENKINS,
        MEMCACHED_HASH_MURMUR3,
        MEMCACHED_HASH_CUSTOM,
        MEMCACHED_HASH_MAX,
        MEMCACHED_DISTRIBUTION_MODULA,
        MEMCACHED_DISTRIBUTION_CONSISTENT,
        MEMCACHED_DISTRIBUTION_CONSISTENT_KETAMA,
        MEMCACHED_DISTRIBUTION_RANDOM,
        MEMCACHED_DISTRIBUTION_CONSISTENT_KETAMA_SPY,
        MEMCACHED_DISTRIBUTION_CONSISTENT_WEIGHTED,
        MEMCACHED_DISTRIBUTION_VIRTUAL_BUCKET,
        MEMCACHED_DISTRIBUTION_CONSISTENT_MAX,
        MEMCACHED_SERVER_STATE_NEW,
        MEMCACHED_SERVER_STATE_ADDRINFO,
        MEMCACHED_SERVER_STATE_IN_PROGRESS,
        MEMCACHED_SERVER_STATE_CONNECTED,
        MEMCACHED_SERVER_STATE_IN_TIMEOUT,
        MEMCACHED_SERVER_STATE_DISABLED,
        MEMCACHED_MAX_KEY,
        MEMCACHED_MAX_NAMESPACE,
        MEMCACHED_VERSION_STRING_LENGTH,
        MEMCACHED_DEFAULT_PORT,
        MEMCACHED_DEFAULT_TIMEOUT,
        MEMCACHED_DEFAULT_CONNECT_TIMEOUT,
        MEMCACHED_EXPIRATION_NOT_ADD,
        MEMCACHED_SERVER_FAILURE_LIMIT,
        MEMCACHED_SERVER_FAILURE_RETRY_TIMEOUT,
        MEMCACHED_NI_MAXHOST,
    ]
    .into()
}

/// Constants that the library does not define.
const UNUSED: &[&str] = &[
    "HASHKIT_DISTRIBUTION_MODULA",
    "HASHKIT_DISTRIBUTION_RANDOM",
    "HASHKIT_DISTRIBUTION_KETAMA",
    "HASHKIT_DISTRIBUTION_MAX",
    "MEMCACHED_MAX_BUFFER",
    "MEMCACHED_MAX_HOST_SORT_LENGTH",
    "MEMCACHED_MAX_INTEGER_DISPLAY_LENGTH",
    "MEMCACHED_MAXIMUM_INTEGER_DISPLAY_LENGTH",
    "MEMCACHED_PREFIX_KEY_MAX_SIZE",
    "LIBMEMCACHED_ENABLE_DEPRECATED",
    "LIBMEMCACHED_WITH_SASL_SUPPORT",
    "LIBMEMCACHED_AWESOME",
    "LIBMEMCACHED_VERSION_HEX",
    "MEMCACHED_POINTS_PER_SERVER",
    "MEMCACHED_POINTS_PER_SERVER_KETAMA",
    "MEMCACHED_CONTINUUM_SIZE",
    "MEMCACHED_STRIDE",
    "MEMCACHED_CONTINUUM_ADDITION",
    "MEMCACHED_SERVER_FAILURE_DEAD_TIMEOUT",
    "MEMCACHED_SERVER_TIMEOUT_LIMIT",
    "LIBHASHKIT_VERSION_HEX",
    "MEMCACHED_NI_MAXSERV",
];

/// Returns where each bit lies: its byte in the structure, and its bit in the byte.
fn bits() -> BTreeMap<&'static str, (usize, u32)> {
    let flag = |bit: u16| {
        (offset_of!(memcached_st, flags) + bit.trailing_zeros() as usize / 8, bit.trailing_zeros() % 8)
    };
    let at = |offset: usize, bit: u8| (offset, bit.trailing_zeros());
    [
        ("memcached_st.state.is_purging", at(offset_of!(memcached_st, state), handle_state::IS_PURGING)),
        (
            "memcached_st.state.is_processing_input",
            at(offset_of!(memcached_st, state), handle_state::IS_PROCESSING_INPUT),
        ),
        (
            "memcached_st.state.is_time_for_rebuild",
            at(offset_of!(memcached_st, state), handle_state::IS_TIME_FOR_REBUILD),
        ),
        ("memcached_st.state.is_parsing", at(offset_of!(memcached_st, state), handle_state::IS_PARSING)),
        ("memcached_st.flags.auto_eject_hosts", flag(flags::AUTO_EJECT_HOSTS)),
        ("memcached_st.flags.binary_protocol", flag(flags::BINARY_PROTOCOL)),
        ("memcached_st.flags.buffer_requests", flag(flags::BUFFER_REQUESTS)),
        ("memcached_st.flags.hash_with_namespace", flag(flags::HASH_WITH_NAMESPACE)),
        ("memcached_st.flags.no_block", flag(flags::NO_BLOCK)),
        ("memcached_st.flags.reply", flag(flags::REPLY)),
        ("memcached_st.flags.randomize_replica_read", flag(flags::RANDOMIZE_REPLICA_READ)),
        ("memcached_st.flags.support_cas", flag(flags::SUPPORT_CAS)),
        ("memcached_st.flags.tcp_nodelay", flag(flags::TCP_NODELAY)),
        ("memcached_st.flags.use_sort_hosts", flag(flags::USE_SORT_HOSTS)),
        ("memcached_st.flags.use_udp", flag(flags::USE_UDP)),
        ("memcached_st.flags.verify_key", flag(flags::VERIFY_KEY)),
        ("memcached_st.flags.tcp_keepalive", flag(flags::TCP_KEEPALIVE)),
        ("memcached_st.flags.is_aes", flag(flags::IS_AES)),
        ("memcached_st.flags.is_fetching_version", flag(flags::IS_FETCHING_VERSION)),
        ("memcached_st.options.is_allocated", at(offset_of!(memcached_st, options), IS_ALLOCATED)),
        (
            "memcached_result_st.options.is_allocated",
            at(offset_of!(memcached_result_st, options), IS_ALLOCATED),
        ),
        (
            "memcached_result_st.options.is_initialized",
            at(offset_of!(memcached_result_st, options), IS_INITIALIZED),
        ),
        (
            "memcached_server_st.options.is_allocated",
            at(offset_of!(memcached_server_st, options), IS_ALLOCATED),
        ),
        (
            "memcached_server_st.options.is_initialized",
            at(offset_of!(memcached_server_st, options), IS_INITIALIZED),
        ),
        (
            "memcached_string_st.options.is_allocated",
            at(offset_of!(memcached_string_st, options), IS_ALLOCATED),
        ),
        (
            "memcached_string_st.options.is_initialized",
            at(offset_of!(memcached_string_st, options), IS_INITIALIZED),
        ),
        ("hashkit_st.flags.is_base_same_distributed", at(offset_of!(hashkit_st, flags), 1)),
        ("hashkit_st.options.is_allocated", at(offset_of!(hashkit_st, options), IS_ALLOCATED)),
    ]
    .into()
}

#[test]
fn structure_layouts_match_libmemcached() {
    let ours = shapes();
    let mut compared = 0;
    for line in RECORDED.lines().filter(|line| line.starts_with("struct ") || line.starts_with("field ")) {
        let (name, shape) =
            line.match_indices(' ').nth(1).map(|(at, _)| (&line[..at], &line[at + 1..])).expect(line);
        // A structure of one field, which ours has in its place.
        if name == "field memcached_st.server_info" {
            continue;
        }
        assert_eq!(ours.get(name).map(String::as_str), Some(shape), "{name}");
        compared += 1;
    }
    assert_eq!(compared, ours.len());
}

#[test]
fn constants_match_libmemcached() {
    let ours = constants();
    let mut compared = 0;
    for line in RECORDED.lines() {
        let Some((name, value)) = line.strip_prefix("constant ").and_then(|line| line.split_once(' ')) else {
            continue;
        };
        if !UNUSED.contains(&name) {
            assert_eq!(ours.get(name).map(i64::to_string).as_deref(), Some(value), "{name}");
            compared += 1;
        }
    }
    assert_eq!(compared, ours.len());
}

#[test]
fn bit_fields_match_libmemcached() {
    let ours = bits();
    let mut compared = 0;
    for line in RECORDED.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let ["bit", name, "at", byte, "bit", bit] = words[..] else { continue };
        let expected = (byte.parse().expect(line), bit.parse().expect(line));
        // Unused fields.
        if [
            "memcached_st.flags.not_used",
            "memcached_server_st.options.is_shutting_down",
            "memcached_server_st.options.is_dead",
        ]
        .contains(&name)
        {
            continue;
        }
        assert_eq!(ours.get(name), Some(&expected), "{name}");
        compared += 1;
    }
    assert_eq!(compared, ours.len());
}
