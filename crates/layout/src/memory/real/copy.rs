//! Copies that use the processor's ordering rules for memory that others write or read.

use std::arch::asm;
use std::arch::x86_64::__m128i;
use std::mem::transmute;

/// From this length on the string move is at least as fast as moves of sixteen bytes.
const STRING_MOVE_BYTES_MIN: usize = 768;

/// AMD's string move goes byte by byte if it writes up to this many bytes beyond where it reads …
const ALIASED_BYTES: usize = 32;
/// … modulo the page.
const PAGE_BYTES: usize = 4096;

macro_rules! move_word {
    ($name:ident, $move:literal, $register:tt, $template:literal) => {
        /// # Safety
        /// `src` is readable and `dst` writable for the word; neither need be aligned.
        #[inline]
        unsafe fn $name(src: *const u8, dst: *mut u8) {
            // SAFETY: one load and one store of the word, which the caller vouches for.
            unsafe {
                asm!(
                    concat!($move, " ", $template, ", [{src}]"),
                    concat!($move, " [{dst}], ", $template),
                    src = in(reg) src,
                    dst = in(reg) dst,
                    word = out($register) _,
                    options(nostack, preserves_flags)
                );
            }
        }
    };
}

move_word!(move16, "movdqu", xmm_reg, "{word}");
move_word!(move8, "mov", reg, "{word:r}");
move_word!(move4, "mov", reg, "{word:e}");
move_word!(move2, "mov", reg, "{word:x}");
move_word!(move1, "mov", reg_byte, "{word}");

/// Loads eight bytes.
///
/// # Safety
/// `src` is readable for them; it need not be aligned.
#[inline]
pub unsafe fn word(src: *const u8) -> u64 {
    let word: u64;
    // SAFETY: one load of the word, which the caller vouches for.
    unsafe {
        asm!(
            "mov {word}, [{src}]",
            src = in(reg) src,
            word = out(reg) word,
            options(nostack, preserves_flags)
        );
    }
    word
}

/// Loads eight words, each with acquire: it is whole, and no later load comes before it.
///
/// # Safety
/// `src` is readable for 64 bytes and aligned to them.
#[inline]
pub unsafe fn line(src: *const u8) -> [u64; 8] {
    let (first, second, third, last): (__m128i, __m128i, __m128i, __m128i);
    // SAFETY: four loads of the 64 bytes that the caller vouches for. The processor loads aligned words whole and makes no
    // later load before them, and the compiler, which is not told that nothing is written, moves no access across them.
    unsafe {
        asm!(
            "movdqa {first}, [{src}]",
            "movdqa {second}, [{src} + 16]",
            "movdqa {third}, [{src} + 32]",
            "movdqa {last}, [{src} + 48]",
            src = in(reg) src,
            first = out(xmm_reg) first,
            second = out(xmm_reg) second,
            third = out(xmm_reg) third,
            last = out(xmm_reg) last,
            options(nostack, preserves_flags)
        );
    }
    // SAFETY: both are 64 bytes, and any are eight words.
    unsafe { transmute([first, second, third, last]) }
}

/// # Safety
/// `src` is readable and `dst` writable for 32 bytes.
#[inline]
unsafe fn move32(src: *const u8, dst: *mut u8) {
    // SAFETY: two loads and two stores of sixteen bytes, which the caller vouches for.
    unsafe {
        asm!(
            "movdqu {first}, [{src}]",
            "movdqu {second}, [{src} + 16]",
            "movdqu [{dst}], {first}",
            "movdqu [{dst} + 16], {second}",
            src = in(reg) src,
            dst = in(reg) dst,
            first = out(xmm_reg) _,
            second = out(xmm_reg) _,
            options(nostack, preserves_flags)
        );
    }
}

/// # Safety
/// `src` is readable and `dst` writable for `len` bytes, and they do not overlap.
#[inline]
unsafe fn move_string(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: rep movsb reads len bytes at src and writes them at dst, which the caller vouches for; the
    // direction flag is clear by the ABI.
    unsafe {
        asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") src => _,
            inout("rdi") dst => _,
            options(nostack, preserves_flags)
        );
    }
}

/// Copies out of the region.
///
/// # Safety
/// `src` is readable and `dst` writable for `len` bytes, and they do not overlap.
#[inline]
pub unsafe fn load(src: *const u8, dst: *mut u8, len: usize) {
    let is_aliased = (dst as usize).wrapping_sub(src as usize) % PAGE_BYTES < ALIASED_BYTES;
    if len < STRING_MOVE_BYTES_MIN || is_aliased {
        // SAFETY: the caller's contract.
        unsafe { store(src, dst, len) }
    } else {
        // SAFETY: the caller's contract.
        unsafe { move_string(src, dst, len) }
    }
}

/// Copies into the region: by moves of sixteen bytes, because AMD's string move takes twice as long to bytes that are
/// neither cached nor aligned as the source is.
///
/// # Safety
/// `src` is readable and `dst` writable for `len` bytes, and they do not overlap.
#[inline]
pub unsafe fn store(src: *const u8, dst: *mut u8, len: usize) {
    // Two overlapping moves copy any length between one and two of their size.
    let both_ends = |size: usize, step: unsafe fn(*const u8, *mut u8)| {
        // SAFETY: size <= len, so both lie in the ranges that the caller vouches for.
        unsafe { step(src, dst) };
        let last = len - size;
        // SAFETY: as above.
        unsafe { step(src.wrapping_add(last), dst.wrapping_add(last)) };
    };
    match len {
        0 => {}
        // SAFETY: the caller's contract.
        1 => unsafe { move1(src, dst) },
        2..4 => both_ends(2, move2),
        4..8 => both_ends(4, move4),
        8..16 => both_ends(8, move8),
        16..32 => both_ends(16, move16),
        _ => {
            let mut at = 0;
            while at + 32 < len {
                // SAFETY: the 32 bytes from `at` on are among the `len`.
                unsafe { move32(src.wrapping_add(at), dst.wrapping_add(at)) };
                at += 32;
            }
            let last = len - 32;
            // SAFETY: the last 32 of at least 32 bytes.
            unsafe { move32(src.wrapping_add(last), dst.wrapping_add(last)) };
        }
    }
}
