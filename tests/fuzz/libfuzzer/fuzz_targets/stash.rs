//! The target `stash` under libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| -> libfuzzer_sys::Corpus {
    segue_fuzz_libfuzzer::verdict(segue_fuzz::targets::stash::run(data))
});
