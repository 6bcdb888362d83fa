//! What each PE tells the others: a card of a few bytes in each heap.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use fabcache_layout::Memory;
use fabcache_shmem::RemoteHeaps;

/// Time that PEs take at most until all have started.
const TIME_MAX: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_micros(200);

/// Bytes of a card before its text: its length + 1 << 32, so that the word is 0 before.
const FLAG_BYTES: u64 = 8;

/// Puts this PE's text on its card in each heap, and returns the texts of all, by PE. `place` is where a PE's card is;
/// `memory` is this PE's heap.
///
/// # Errors
/// A PE does not come.
pub fn exchange(
    heaps: &mut dyn RemoteHeaps,
    memory: &Memory,
    place: impl Fn(usize) -> Range<u64>,
    text: &[u8],
) -> Result<Vec<Vec<u8>>> {
    let own = place(heaps.pe());
    assert!(text.len() as u64 + FLAG_BYTES <= own.end - own.start, "a card of {} bytes", text.len());
    for pe in 0..heaps.pes() {
        heaps.put(pe, own.start + FLAG_BYTES, text);
    }
    heaps.fence();
    for pe in 0..heaps.pes() {
        heaps.put_word(pe, own.start, 1 << 32 | text.len() as u64);
    }
    let end = Instant::now() + TIME_MAX;
    let mut texts = vec![Vec::new(); heaps.pes()];
    for (pe, text) in texts.iter_mut().enumerate() {
        let card = place(pe);
        loop {
            heaps.progress();
            let flag = memory.load(card.start, Ordering::Acquire);
            if flag != 0 {
                let room = card.end - card.start - FLAG_BYTES;
                text.resize((flag & u64::from(u32::MAX)).min(room) as usize, 0);
                memory.copy_out(card.start + FLAG_BYTES, text);
                break;
            }
            if Instant::now() > end {
                bail!("PE {pe} of the job has not started within {} s", TIME_MAX.as_secs());
            }
            std::thread::sleep(PAUSE);
        }
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use fabcache_shmem::local::LocalJob;

    use super::*;

    #[test]
    fn all_pes_learn_the_texts_of_all() {
        let job = LocalJob::new(3, 3 * 64);
        let place = |pe: usize| pe as u64 * 64..(pe as u64 + 1) * 64;
        let told = std::thread::scope(|scope| {
            let told: Vec<_> = (0..3)
                .map(|pe| {
                    let job = &job;
                    scope.spawn(move || {
                        let text = format!("PE {}", pe * 1000);
                        exchange(&mut job.of(pe), job.memory(pe), place, text.as_bytes()).expect("all come")
                    })
                })
                .collect();
            told.into_iter().map(|told| told.join().expect("no panic")).collect::<Vec<_>>()
        });
        for texts in told {
            assert_eq!(texts, [&b"PE 0"[..], b"PE 1000", b"PE 2000"]);
        }
    }
}
