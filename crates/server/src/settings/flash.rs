//! The flash tier's settings: `--flash` and its companions, and memcached's names for them (`-o ext_path`).

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use anyhow::{Result, bail};

use crate::extended_options::ExtendedOptions;
use crate::flash::{DeviceSettings, HEADER_AREA_BYTES, SEGMENTS_MIN};
use crate::options::{Options, path_and_size, size};

/// Bytes of the shortest and longest flash segment.
const SEGMENT_BYTES_MIN: u64 = 16 << 20;
const SEGMENT_BYTES_MAX: u64 = 64 << 20;
/// From so many bytes of flash up, segments have [`SEGMENT_BYTES_MAX`] by default.
const LONG_SEGMENTS_FROM_BYTES: u64 = 4 << 30;
/// Bytes of all devices' segments: page numbers have 31 bits.
const FLASH_BYTES_MAX: u64 = 8 << 40;
const SECONDS_PER_DAY: f64 = 86_400.0;

/// The flash tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlashSettings {
    /// The devices, at least one. Segments are taken from them in turn.
    pub devices: Vec<DeviceSettings>,
    /// Bytes of a flash segment: a power of two.
    pub segment_bytes: u64,
    /// Items of fewer bytes, with key and header, are evicted instead of written.
    pub item_bytes_min: u32,
    /// The limit on writes, if there is one.
    pub write_bytes_per_second: Option<u64>,
}

impl FlashSettings {
    /// Checks the options; none without `--flash` or `-o ext_path`.
    ///
    /// # Errors
    /// Something given does not make sense; the error names it and says what would.
    pub fn new(options: &Options, extended: &ExtendedOptions) -> Result<Option<FlashSettings>> {
        let devices = devices(options, extended)?;
        if devices.is_empty() {
            check_companions(options)?;
            return Ok(None);
        }
        check_paths(&devices, options)?;
        let own = options.flash.len();
        let sum = |bytes: fn(&DeviceSettings) -> u64| {
            devices.iter().map(bytes).fold(0, |sum: u64, bytes| sum.saturating_add(bytes))
        };
        let bytes = sum(|device| device.bytes);
        if sum(room_for_segments) > FLASH_BYTES_MAX {
            bail!(
                "{} names {} GiB in all, and the flash tier takes at most {} GiB (8t): give smaller sizes",
                option_name(own),
                bytes >> 30,
                FLASH_BYTES_MAX >> 30
            );
        }
        let segment_bytes = segment_bytes(options, extended, &devices)?;
        check_segments(&devices, own, segment_bytes)?;
        let item_bytes_min = options.flash_item_size.or(extended.ext_item_bytes).unwrap_or(0);
        let write_bytes_per_second = write_limit(options, bytes)?;
        Ok(Some(FlashSettings { devices, segment_bytes, item_bytes_min, write_bytes_per_second }))
    }
}

/// Returns the devices of `--flash`, then those of `-o ext_path`.
fn devices(options: &Options, extended: &ExtendedOptions) -> Result<Vec<DeviceSettings>> {
    let given = options.flash.iter().map(|text| {
        let (path, bytes) = path_and_size("--flash", text)?;
        if names_several(text) {
            bail!("--flash takes one device, and {text:?} names several: repeat --flash for each device");
        }
        Ok(DeviceSettings { path, bytes })
    });
    // memcached's size counts its pages, and its files have no header.
    let memcached = extended.ext_paths.iter().map(|given| {
        Ok(DeviceSettings { path: given.path.clone(), bytes: given.bytes.saturating_add(HEADER_AREA_BYTES) })
    });
    given.chain(memcached).collect()
}

/// Returns whether a text has PATH:SIZE with a suffix and a comma behind it.
fn names_several(text: &str) -> bool {
    let is_size = |word: &str| {
        let digits = word.trim_end_matches(|c: char| "kmgt".contains(c.to_ascii_lowercase()));
        digits.len() + 1 == word.len()
            && !digits.is_empty()
            && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    text.match_indices(',').any(|(comma, _)| {
        text[..comma].rsplit_once(':').is_some_and(|(path, size)| !path.is_empty() && is_size(size))
    })
}

/// Returns the option that errors name, if `own` devices are of `--flash`, and the others of `-o ext_path`.
fn option_name(own: usize) -> &'static str {
    if own == 0 { "-o ext_path" } else { "--flash" }
}

/// Returns the bytes of a device that its segments may use.
fn room_for_segments(device: &DeviceSettings) -> u64 {
    device.bytes.saturating_sub(HEADER_AREA_BYTES)
}

/// Refuses options that say something about flash without any.
fn check_companions(options: &Options) -> Result<()> {
    let lone = [
        ("--flash-segment", options.flash_segment.is_some()),
        ("--flash-write-mb-s", options.flash_write_mb_s.is_some()),
        ("--flash-dwpd", options.flash_dwpd.is_some()),
        ("--flash-item-size", options.flash_item_size.is_some()),
    ];
    match lone.iter().find(|(_, given)| *given) {
        Some((option, _)) => bail!("{option} needs --flash: give it too, or leave {option} out"),
        None => Ok(()),
    }
}

/// Refuses a path that is given twice, or that the memory file (`-e`) needs for itself or a file beside it.
fn check_paths(devices: &[DeviceSettings], options: &Options) -> Result<()> {
    // Without a current directory no path becomes absolute, and they are compared as given.
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for (number, device) in devices.iter().enumerate() {
        let path = absolute(&device.path);
        if devices[..number].iter().any(|other| absolute(&other.path) == path) {
            bail!("--flash names {} twice: give each device once, with its whole size", path.display());
        }
        if let Some(file) = &options.memory_file {
            check_memory_file(&path, &absolute(file))?;
        }
    }
    Ok(())
}

/// Refuses the path of a device that is the memory file, or a file that the server keeps beside that.
fn check_memory_file(device: &Path, memory_file: &Path) -> Result<()> {
    if device == memory_file {
        bail!("--flash and the memory file (-e) both name {}: give each its own file", device.display());
    }
    let suffix = device.as_os_str().as_bytes().strip_prefix(memory_file.as_os_str().as_bytes());
    // The server renames FILE.meta.tmp, with a number behind it if that name is taken.
    if suffix
        .is_some_and(|suffix| suffix == b".lock" || suffix == b".meta" || suffix.starts_with(b".meta.tmp"))
    {
        bail!(
            "--flash names {}, which the memory file (-e) {} needs: give another path",
            device.display(),
            memory_file.display()
        );
    }
    Ok(())
}

/// Returns the bytes of a flash segment: `--flash-segment`, else `ext_page_size` as far as it fits, else the default.
fn segment_bytes(options: &Options, extended: &ExtendedOptions, devices: &[DeviceSettings]) -> Result<u64> {
    if let Some(text) = &options.flash_segment {
        let bytes = size("--flash-segment", text, 1)?;
        if !bytes.is_power_of_two() || !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&bytes) {
            bail!("--flash-segment takes 16m, 32m or 64m, not {text:?}");
        }
        return Ok(bytes);
    }
    if let Some(megabytes) = extended.ext_page_megabytes {
        return Ok(segment_bytes_near(megabytes, devices));
    }
    let bytes: u64 = devices.iter().map(|device| device.bytes).sum();
    Ok(if bytes >= LONG_SEGMENTS_FROM_BYTES { SEGMENT_BYTES_MAX } else { SEGMENT_BYTES_MIN })
}

/// Returns the bytes of a flash segment for memcached's page size. memcached takes pages of any size, and a tier of one.
fn segment_bytes_near(megabytes: u32, devices: &[DeviceSettings]) -> u64 {
    let wanted = u64::from(megabytes) << 20;
    let powers = || [16 << 20, 32 << 20, 64 << 20].into_iter();
    let fits = |bytes: &u64| check_segments(devices, 0, *bytes).is_ok();
    let nearest = powers().filter(fits).min_by_key(|bytes| bytes.abs_diff(wanted));
    nearest.unwrap_or(SEGMENT_BYTES_MIN)
}

/// Checks that each device has a segment, and all together have enough. The first `own` devices are of `--flash`, the others
/// of `-o ext_path`, whose sizes have no header.
fn check_segments(devices: &[DeviceSettings], own: usize, segment_bytes: u64) -> Result<()> {
    let megabytes = segment_bytes >> 20;
    let header = |number: usize| if number < own { HEADER_AREA_BYTES >> 20 } else { 0 };
    let named = |number: usize| {
        let path = devices[number].path.display();
        if number < own { format!("--flash {path}") } else { format!("-o ext_path={path}") }
    };
    let segments: u64 = devices.iter().map(|device| room_for_segments(device) / segment_bytes).sum();
    if segments < SEGMENTS_MIN {
        let (who, advice) = match devices {
            [_] => (named(0), format!("give a size of {}m or more", header(0) + SEGMENTS_MIN * megabytes)),
            _ => (option_name(own).to_owned(), "give larger sizes".to_owned()),
        };
        bail!(
            "{who} has room for {segments} segment{} of {megabytes} MiB, and {SEGMENTS_MIN} are the least{}: {advice}",
            if segments == 1 { "" } else { "s" },
            if own == 0 { String::new() } else { format!(", with {} MiB for a header", header(0)) }
        );
    }
    let small = devices.iter().position(|device| room_for_segments(device) < segment_bytes);
    if let Some(number) = small {
        let header = header(number);
        bail!(
            "{}: {} bytes are less than {}a segment of {megabytes} MiB; give a size of {}m or more, or leave the device out",
            named(number),
            if header == 0 { room_for_segments(&devices[number]) } else { devices[number].bytes },
            if header == 0 { String::new() } else { format!("a header of {header} MiB and ") },
            header + megabytes
        );
    }
    Ok(())
}

/// Returns the bytes a second that may be written, for devices with so many bytes.
fn write_limit(options: &Options, bytes: u64) -> Result<Option<u64>> {
    if options.flash_write_mb_s == Some(0) {
        bail!("--flash-write-mb-s takes a number of megabytes greater than 0; leave it out for no limit");
    }
    let by_rate = options.flash_write_mb_s.map(|megabytes| u64::from(megabytes) << 20);
    let by_wear = match options.flash_dwpd {
        Some(writes) if !writes.is_finite() || writes <= 0.0 => {
            bail!(
                "--flash-dwpd takes a number greater than 0, such as 0.5, not {writes}; leave it out for no limit"
            )
        }
        Some(writes) => Some(((bytes as f64 * writes / SECONDS_PER_DAY) as u64).max(1)),
        None => None,
    };
    Ok(by_rate.into_iter().chain(by_wear).min())
}

/// Returns notes on memcached's options for flash that have no effect, or another one than there.
pub(super) fn notes(
    options: &Options,
    extended: &ExtendedOptions,
    flash: Option<&FlashSettings>,
) -> Vec<String> {
    let mut notes = Vec::new();
    for given in &extended.ext_paths {
        if let Some(bucket) = &given.bucket {
            let path = given.path.display();
            notes.push(format!(
                "the bucket {bucket} of -o ext_path={path} has no effect: flash has no buckets"
            ));
        }
    }
    for (name, given, own, is_overridden) in [
        ("ext_page_size", extended.ext_page_megabytes, "--flash-segment", options.flash_segment.is_some()),
        ("ext_item_size", extended.ext_item_bytes, "--flash-item-size", options.flash_item_size.is_some()),
    ] {
        if given.is_some() && flash.is_none() {
            notes.push(format!("-o {name} has no effect: there is no flash tier; give one with --flash"));
        } else if given.is_some() && is_overridden {
            notes.push(format!("-o {name} has no effect: {own} is given"));
        }
    }
    if let (Some(flash), Some(megabytes)) = (flash, extended.ext_page_megabytes)
        && options.flash_segment.is_none()
        && flash.segment_bytes != u64::from(megabytes) << 20
    {
        notes.push(format!(
            "flash segments have {} MiB, not the {megabytes} of -o ext_page_size: 16, 32 or 64 MiB are possible, with at least \
             {SEGMENTS_MIN} segments in all",
            flash.segment_bytes >> 20
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::CommandLine;
    use clap::Parser;
    use proptest::prelude::*;

    fn of(line: &str) -> Result<(Option<FlashSettings>, Vec<String>)> {
        let words = std::iter::once("fabcached").chain(line.split_whitespace());
        let options = CommandLine::try_parse_from(words)?.options;
        let extended = ExtendedOptions::parse(&options.extended)?;
        let flash = FlashSettings::new(&options, &extended)?;
        let notes = notes(&options, &extended, flash.as_ref());
        Ok((flash, notes))
    }

    fn flash(line: &str) -> FlashSettings {
        of(line).expect(line).0.expect(line)
    }

    fn device(path: &str, bytes: u64) -> DeviceSettings {
        DeviceSettings { path: path.into(), bytes }
    }

    #[test]
    fn devices_follow_the_options() {
        assert_eq!(of("").expect("valid"), (None, vec![]));
        let settings = flash("--flash /a:b:1g --flash /dev/c:3g -o ext_path=/d:64m:default,ext_path=/e:2t");
        let expected = [
            device("/a:b", 1 << 30),
            device("/dev/c", 3 << 30),
            device("/d", 65 << 20),
            device("/e", (2 << 40) + (1 << 20)),
        ];
        assert_eq!(settings.devices, expected);
        assert_eq!((settings.item_bytes_min, settings.write_bytes_per_second), (0, None));
        let file =
            "flash = [\"/a:1g\", \"/b:1g\"]\nflash-segment = \"32m\"\nflash-dwpd = 1\nflash-item-size = 9\n";
        let file = toml::from_str(file).expect("valid");
        let of_file = FlashSettings::new(&file, &ExtendedOptions::default()).expect("valid").expect("given");
        assert_eq!(
            of_file,
            flash("--flash /a:1g --flash /b:1g --flash-segment 32m --flash-dwpd 1 --flash-item-size 9")
        );
    }

    #[test]
    fn the_largest_tier_has_as_many_pages_as_slots_can_name() {
        for line in ["--flash /a:8t", "-o ext_path=/a:8t", "-o ext_path=/a:4t,ext_path=/b:4t"] {
            assert_eq!(flash(line).segment_bytes, SEGMENT_BYTES_MAX, "{line}");
        }
        of("-o ext_path=/a:4t,ext_path=/b:4t,ext_path=/c:16m").expect_err("more pages than that");
    }

    #[test]
    fn segments_fit_the_devices() {
        for (line, megabytes) in [
            ("--flash /a:65m", 16),
            ("--flash /a:4095m", 16),
            ("--flash /a:4g", 64),
            ("--flash /a:2g --flash /b:2g", 64),
            ("--flash /a:8t --flash-segment 16m", 16),
            ("--flash /a:1g --flash-segment 64M", 64),
            ("-o ext_path=/a:1g,ext_page_size=32", 32),
            ("-o ext_path=/a:1g,ext_page_size=64 --flash-segment 16m", 16),
        ] {
            assert_eq!(flash(line).segment_bytes, megabytes << 20, "{line}");
        }
    }

    #[test]
    fn page_sizes_of_memcached_become_the_nearest_segment() {
        for (line, megabytes) in [
            ("ext_path=/a:64m,ext_page_size=8", 16),
            ("ext_path=/a:64m,ext_page_size=64", 16),
            ("ext_path=/a:128m,ext_page_size=64", 32),
            ("ext_path=/a:1g,ext_page_size=50", 64),
            ("ext_path=/a:1g,ext_page_size=4294967295", 64),
            ("ext_path=/a:1g,ext_path=/b:32m,ext_page_size=64", 32),
        ] {
            let (flash, notes) = of(&format!("-o {line}")).expect(line);
            assert_eq!(flash.expect(line).segment_bytes, megabytes << 20, "{line}");
            let expected = format!("flash segments have {megabytes} MiB, not the ");
            assert!(notes.len() == 1 && notes[0].starts_with(&expected), "{line}: {notes:?}");
        }
    }

    #[test]
    fn the_smaller_write_limit_counts() {
        let limit = |line: &str| flash(&format!("--flash /a:1g --flash /b:1g {line}")).write_bytes_per_second;
        assert_eq!(limit("--flash-write-mb-s 20"), Some(20 << 20));
        assert_eq!(limit("--flash-dwpd 1"), Some((2 << 30) / 86_400));
        assert_eq!(limit("--flash-dwpd 0.5"), Some((1 << 30) / 86_400));
        assert_eq!(limit("--flash-dwpd 1e-300"), Some(1));
        assert_eq!(limit("--flash-dwpd 1 --flash-write-mb-s 20"), Some((2 << 30) / 86_400));
        assert_eq!(limit("--flash-dwpd 86400 --flash-write-mb-s 20"), Some(20 << 20));
    }

    #[test]
    fn notes_name_what_has_no_effect() {
        let notes = |line: &str| of(line).expect(line).1;
        assert_eq!(flash("-o ext_path=/a:1g,ext_item_size=512").item_bytes_min, 512);
        assert_eq!(flash("-o ext_path=/a:1g,ext_item_size=512 --flash-item-size 5").item_bytes_min, 5);
        assert_eq!(notes("-o ext_path=/a:1g,ext_item_size=512,ext_page_size=16"), [""; 0]);
        for (line, needle) in [
            ("-o ext_path=/a:1g:lowttl", "the bucket lowttl of -o ext_path=/a has no effect"),
            ("-o ext_page_size=64", "-o ext_page_size has no effect: there is no flash tier"),
            ("-o ext_item_size=512", "-o ext_item_size has no effect: there is no flash tier"),
            ("--flash /a:1g --flash-segment 16m -o ext_page_size=64", "--flash-segment is given"),
            ("--flash /a:1g --flash-item-size 1 -o ext_item_size=6", "--flash-item-size is given"),
        ] {
            let notes = notes(line);
            assert!(notes.len() == 1 && notes[0].contains(needle), "{line}: {notes:?}");
        }
    }

    #[test]
    fn senseless_settings_are_refused() {
        for (line, needle) in [
            (
                "--flash /a",
                "--flash takes PATH:SIZE, such as /var/lib/fabcached/flash:64g; \"/a\" has no size",
            ),
            ("--flash /a:", "has no size"),
            ("--flash :1g", "has no path"),
            ("--flash /a:5q", "--flash /a: takes a size such as 64, 512k, 2m or 1g; not \"5q\""),
            ("--flash /a:1.5t", "--flash /a: takes a whole number, not \"1.5t\"; write 1536g for it"),
            ("--flash /a:0", "--flash /a: takes a size greater than 0"),
            ("--flash /a:64", "--flash /a: 64 without a suffix are bytes; write 64m for megabytes"),
            ("-o ext_path=/a:64", "-o ext_path /a: 64 without a suffix are bytes; write 64m for megabytes"),
            ("--flash /a:128m,/b:128m", "\"/a:128m,/b:128m\" names several: repeat --flash for each device"),
            ("--flash a:2G,b:1t,c:1g", "repeat --flash for each device"),
            (
                "--flash /a:64m",
                "--flash /a has room for 3 segments of 16 MiB, and 4 are the least, with 1 MiB for a header: give a size of 65m",
            ),
            (
                "-o ext_path=/e:20m",
                "-o ext_path=/e has room for 1 segment of 16 MiB, and 4 are the least: give a size of 64m or more",
            ),
            (
                "-o ext_path=/d:20m,ext_path=/e:20m",
                "-o ext_path has room for 2 segments of 16 MiB, and 4 are the least: give larger sizes",
            ),
            (
                "--flash /a:1g -o ext_path=/e:9m",
                "-o ext_path=/e: 9437184 bytes are less than a segment of 16 MiB; give a size of 16m or more, or leave",
            ),
            ("-o ext_path=/a:9t", "-o ext_path names 9216 GiB in all"),
            ("--flash /a:256m --flash-segment 64m", "give a size of 257m"),
            (
                "--flash /a:1g --flash /b:16m",
                "--flash /b: 16777216 bytes are less than a header of 1 MiB and a segment of 16 MiB; give a size of 17m",
            ),
            (
                "--flash /a:8t --flash /b:1g",
                "--flash names 8193 GiB in all, and the flash tier takes at most 8192 GiB",
            ),
            ("--flash /a:16777215t --flash /b:16777215t", "in all"),
            ("--flash /a:1g --flash /a:2g", "--flash names /a twice"),
            ("--flash /a:1g -o ext_path=/a:2g", "--flash names /a twice"),
            ("--flash a:1g --flash ./a:1g", "twice"),
            ("--flash /a:1g -e /a", "both name /a"),
            ("--flash /a.meta:1g -e /a", "--flash names /a.meta, which the memory file (-e) /a needs"),
            ("--flash ./a.lock:1g -e a", "needs: give another path"),
            ("-o ext_path=/a.meta.tmp3:1g -e /a", "which the memory file (-e) /a needs"),
            ("--flash /a:1g --flash-segment 8m", "--flash-segment takes 16m, 32m or 64m, not \"8m\""),
            ("--flash /a:1g --flash-segment 48m", "16m, 32m or 64m"),
            ("--flash /a:1g --flash-segment x", "--flash-segment takes a size"),
            (
                "--flash /a:1g --flash-write-mb-s 0",
                "--flash-write-mb-s takes a number of megabytes greater than 0",
            ),
            (
                "--flash /a:1g --flash-dwpd 0",
                "--flash-dwpd takes a number greater than 0, such as 0.5, not 0",
            ),
            ("--flash /a:1g --flash-dwpd -1", "not -1"),
            ("--flash /a:1g --flash-dwpd inf", "not inf"),
            (
                "--flash-segment 16m",
                "--flash-segment needs --flash: give it too, or leave --flash-segment out",
            ),
            ("--flash-write-mb-s 5", "--flash-write-mb-s needs --flash"),
            ("--flash-dwpd 5", "--flash-dwpd needs --flash"),
            ("--flash-item-size 5", "--flash-item-size needs --flash"),
        ] {
            let error = format!("{:#}", of(line).expect_err(line));
            assert!(error.contains(needle), "{line}: {error}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_devices_have_enough_segments_or_are_refused(
            megabytes in prop::collection::vec(1u64..3000, 1..5), page in 1u32..200,
        ) {
            let words = megabytes.iter().enumerate().map(|(number, size)| format!("ext_path=/{number}:{size}m"));
            let line = format!("-o {},ext_page_size={page}", words.collect::<Vec<_>>().join(","));
            // With the shortest segments, every size that can work does.
            let can_work = megabytes.iter().all(|size| *size >= 16)
                && megabytes.iter().map(|size| size / 16).sum::<u64>() >= SEGMENTS_MIN;
            match of(&line) {
                Ok((flash, _)) => {
                    let flash = flash.expect("given");
                    prop_assert!(check_segments(&flash.devices, 0, flash.segment_bytes).is_ok());
                    prop_assert!(can_work);
                }
                Err(_) => prop_assert!(!can_work),
            }
        }
    }
}
