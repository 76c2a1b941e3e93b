//! The target `http1_request` under libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| -> libfuzzer_sys::Corpus {
    segue_fuzz_libfuzzer::verdict(segue_fuzz::targets::http1_request::run(data))
});
