//! What the statistics of all servers say together.

use std::ptr;

use super::constants::*;
use super::ffi::{Out, put};
use super::types::{memcached_analysis_st, memcached_st, memcached_stat_st};
use crate::guarded;

/// Compares statistics of all servers of a handle: memory of its allocator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_analyze(
    memc: Option<&memcached_st>,
    memc_stat: *const memcached_stat_st,
    error: Out<'_, memcached_return_t>,
) -> *mut memcached_analysis_st {
    guarded(ptr::null_mut(), || {
        let Some(memc) = memc.filter(|memc| memc.inner().is_some() && !memc_stat.is_null()) else {
            put(error, MEMCACHED_INVALID_ARGUMENTS);
            return ptr::null_mut();
        };
        let count = memc.inner().map_or(0, |inner| inner.instances.borrow().len());
        // SAFETY: not NULL; by the manual it is the array of `memcached_stat`, with an element for each server.
        let stats = unsafe { std::slice::from_raw_parts(memc_stat, count) };
        let memory: *mut memcached_analysis_st = memc.allocate(size_of::<memcached_analysis_st>()).cast();
        if memory.is_null() {
            put(error, memc.fail(MEMCACHED_MEMORY_ALLOCATION_FAILURE));
            return memory;
        }
        // SAFETY: not NULL, and allocated with this size and malloc(3)'s alignment.
        unsafe { memory.write(analysis(memc, stats)) };
        put(error, MEMCACHED_SUCCESS);
        memory
    })
}

fn analysis(memc: &memcached_st, stats: &[memcached_stat_st]) -> memcached_analysis_st {
    let mut found = memcached_analysis_st {
        root: ptr::from_ref(memc).cast_mut(),
        average_item_size: 0,
        longest_uptime: 0,
        least_free_server: 0,
        most_consumed_server: 0,
        oldest_server: 0,
        pool_hit_ratio: 0.0,
        most_used_bytes: 0,
        least_remaining_bytes: u64::MAX,
    };
    let (mut items, mut bytes, mut gets, mut hits) = (0_u64, 0_u64, 0_u64, 0_u64);
    for (server, stat) in (0..).zip(stats) {
        let uptime = u32::try_from(stat.uptime).unwrap_or(u32::MAX);
        if uptime > found.longest_uptime {
            (found.longest_uptime, found.oldest_server) = (uptime, server);
        }
        if stat.bytes > found.most_used_bytes {
            (found.most_used_bytes, found.most_consumed_server) = (stat.bytes, server);
        }
        let free = stat.limit_maxbytes.saturating_sub(stat.bytes);
        if free < found.least_remaining_bytes {
            (found.least_remaining_bytes, found.least_free_server) = (free, server);
        }
        items = items.saturating_add(stat.curr_items);
        bytes = bytes.saturating_add(stat.bytes);
        gets = gets.saturating_add(stat.cmd_get);
        hits = hits.saturating_add(stat.get_hits);
    }
    if stats.is_empty() {
        found.least_remaining_bytes = 0;
    }
    found.average_item_size =
        bytes.checked_div(items).map_or(0, |size| u32::try_from(size).unwrap_or(u32::MAX));
    if gets > 0 {
        found.pool_hit_ratio = hits as f64 / gets as f64 * 100.0;
    }
    found
}

/// Gives the comparison back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_analyze_free(analysis: *mut memcached_analysis_st) {
    guarded((), || {
        // SAFETY: NULL, or an analysis of `memcached_analyze`, whose `root` is a handle that must not be freed before it.
        let memc = unsafe { analysis.as_ref().and_then(|found| found.root.as_ref()) };
        if let Some(memc) = memc {
            memc.release(analysis.cast());
        }
    });
}
