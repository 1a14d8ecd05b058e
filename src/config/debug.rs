// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The words of `GDRFAB_DEBUG`, for tests and diagnosis: switches, and limits for which the library's default is always
//! the best choice outside of a test. Words may change in any release.

use super::goal::Goal;
use super::kind::{Kind, Variable};
use super::value::Value;
use super::variables::variables;

variables! {
    /// All words. A word is a [`Variable`] without the prefix `GDRFAB_`.
    WORDS;

    /// The values of the words in force in this process.
    struct Debug {}
    Diagnosis {
        desc: bool = "desc", Kind::Flag, "",
            "every operation's local descriptors are checked, also where the provider needs none; operations take longer";
        ring_slots: u32 = "ring-slots", Kind::PowerOfTwo(256, 65_536), "2048", "shm: 64-byte lines in each connected endpoint's receive ring";
        area_max: usize = "area-max", Kind::Number(128 << 10, 2 << 20), "2097152",
            "shm: largest size in bytes of the area beside each ring, through which messages of 512 bytes and more travel";
        nt_threshold: usize = "nt-threshold", Kind::Number(1, u64::MAX), "16777216",
            "shm: bytes from which a copy bypasses the CPU's caches";
        coop_min: usize = "coop-min", Kind::Number(4096, u64::MAX), "262144",
            "shm: size in bytes from which the target's core may make a part of a copy";
        no_coop: bool = "no-coop", Kind::Flag, "", "shm: a target that polls makes no part of large copies";
        no_pidfd: bool = "no-pidfd", Kind::Flag, "",
            "shm: the peer is asked for each memory file, instead of pidfd_getfd(2) fetching the file";
        no_membarrier: bool = "no-membarrier", Kind::Flag, "",
            "shm: fences on every operation, instead of membarrier(2) on close and sleep";
        copier: Option<String> = "copier", Kind::Text, "",
            "the helper process's program, in place of gdrfab/gdrfab-copier beside the library";
        tcp_pending: usize = "tcp-pending", Kind::Number(1, 65_536), "64",
            "tcp: most connections of a listener whose handshake is not complete";
        tcp_greeting_ms: u64 = "tcp-greeting-ms", Kind::Number(1, 600_000), "5000",
            "tcp: milliseconds within which the handshake of a connection has to be complete";
        tcp_window: u32 = "tcp-window", Kind::Number(1, 1 << 20), "1024",
            "tcp: most messages that an endpoint keeps until their receives are posted";
        tcp_budget: u32 = "tcp-budget", Kind::Number(0, 1 << 30), "1048576",
            "tcp: most bytes of messages that an endpoint keeps until their receives are posted";
        inline: usize = "inline", Kind::Number(0, 4096), "220",
            "verbs: most bytes that travel inside the work request, as far as the device can";
        reg_threads: usize = "reg-threads", Kind::Number(1, 64), "4",
            "verbs: threads that make the pages of large fresh host memory side by side, before it is registered; 1: none";
        ibverbs: Option<String> = "ibverbs", Kind::Text, "", "verbs: library that is opened in place of libibverbs.so.1";
        rdmacm: Option<String> = "rdmacm", Kind::Text, "", "verbs: library that is opened in place of librdmacm.so.1";
    }
}

impl Value for Debug {
    fn of(text: Option<&str>, _: &Kind) -> Debug {
        Debug::read(&|name| WORDS.iter().find(|word| word.name == name)?.value_in(text?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: Kind = Kind::Settings(WORDS);

    #[test]
    fn each_word_is_read_from_the_list() {
        let read = |list: &str| {
            assert_eq!(KIND.invalid_reason(list), None, "{list}");
            Debug::of(Some(list), &KIND)
        };
        let all = read("desc, ring-slots=256,copier=/bin/true,tcp-budget=0");
        assert!(all.desc && !all.no_pidfd && all.ring_slots == 256 && all.copier.as_deref() == Some("/bin/true") && all.tcp_budget == 0);
        let none = Debug::of(None, &KIND);
        assert!(!none.desc && none.ring_slots == 2048 && none.copier.is_none() && none.tcp_budget == 1 << 20 && none.inline == 220);
        for word in WORDS {
            if word.default.is_empty() {
                continue;
            }
            assert_eq!(KIND.invalid_reason(&format!("{}={}", word.name, word.default)), None);
        }
    }

    #[test]
    fn a_list_that_is_not_understood_is_refused() {
        for (list, why) in [
            ("1", "is not known"),
            ("desc,", "is not known"),
            ("desk", "is not known"),
            ("desc=1", "takes no value"),
            ("ring-slots", "lacks its value"),
            ("copier=", "lacks its value"),
            ("ring-slots=300", "a power of two"),
            ("desc,desc", "twice"),
            ("ring-slots=256,ring-slots=512", "twice"),
        ] {
            assert!(KIND.invalid_reason(list).is_some_and(|words| words.contains(why)), "{list}: {:?}", KIND.invalid_reason(list));
        }
    }
}
