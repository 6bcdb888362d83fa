//! What each worker counts of requests and connections. The store counts its own (`fabcache_store::counters`).

fabcache_store::counter_set! {
    /// Counters of one worker.
    ServerCounters, ServerSums {
        /// Requested keys.
        cmd_get,
        /// Values offered.
        cmd_set,
        /// Flush requests.
        cmd_flush,
        /// Touch requests, including `gat`.
        cmd_touch,
        /// Meta commands.
        cmd_meta,
        /// Keys found.
        get_hits,
        /// Keys not found.
        get_misses,
        /// Of these, expired.
        get_expired,
        /// Of these, flushed.
        get_flushed,
        /// Deletes of missing keys.
        delete_misses,
        /// Deletes of existing keys.
        delete_hits,
        /// Increments of missing keys.
        incr_misses,
        /// Increments done.
        incr_hits,
        /// Decrements of missing keys.
        decr_misses,
        /// Decrements done.
        decr_hits,
        /// CAS stores that found nothing.
        cas_misses,
        /// CAS stores done.
        cas_hits,
        /// CAS stores that found another CAS.
        cas_badval,
        /// Touches done.
        touch_hits,
        /// Touches of missing keys.
        touch_misses,
        /// Values too large to store.
        store_too_large,
        /// Values refused because memory was full.
        store_no_memory,
        /// Authentications tried.
        auth_cmds,
        /// Of these, failed.
        auth_errors,
        /// Bytes received.
        bytes_read,
        /// Bytes sent.
        bytes_written,
        /// Times a connection yielded to others.
        conn_yields,
        /// Connections taken.
        total_connections,
        /// Connections refused.
        rejected_connections,
        /// Connections dropped for being idle.
        idle_kicks,
        /// Connections dropped for stopping in the middle of a request or an answer.
        stalled_kicks,
        /// Connections closed because they stalled while others needed the memory of their answers.
        pinning_kicks,
        /// Pauses of accepting because the system had no descriptor left.
        accept_pauses,
        /// Clients with a channel in memory.
        shm_attached,
        /// Of these, clients without the region.
        shm_channel_only,
        /// Clients that requested shared memory and were refused.
        shm_refused,
        /// Clients that violated the protocol of a channel.
        shm_broken,
        /// GETs answered from the mapped region of another PE of the job.
        mapped_reads,
        /// Clients attached over the fabric.
        fabric_attached,
        /// Clients that requested the fabric and were refused.
        fabric_refused,
        /// Clients that violated the protocol of their fabric link.
        fabric_broken,
        /// Workers' ends of the fabric that failed.
        fabric_failures,
        /// Messages of the fabric without a link.
        fabric_dropped_messages,
        /// TLS handshakes that failed.
        tls_errors,
        /// Turns of the event loop with something to do.
        turns,
    }
}
