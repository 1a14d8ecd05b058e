// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Variables of earlier versions, and their successors. `gdrfab_getinfo()` fails if such a variable is set, because the
//! user who has set the variable relies on its effect.

/// Each variable of an earlier version, and the words that name its successor.
pub const REMOVED: &[(&str, &str)] = &[
    ("GDRFAB_SHM_PATHS", "GDRFAB_PATHS"),
    ("GDRFAB_TCP_PATHS", "GDRFAB_PATHS"),
    ("GDRFAB_VERBS_PATHS", "GDRFAB_PATHS"),
    ("GDRFAB_HMEM_INIT", "GDRFAB_HMEM_DRIVER=adopt"),
    ("GDRFAB_HMEM_THREAD", "GDRFAB_HMEM_DRIVER=thread"),
    ("GDRFAB_HMEM_PROCESS", "GDRFAB_HMEM_DRIVER=process, or the option GDRFAB_OPT_DRIVER_CALLS"),
    ("GDRFAB_COPIER", "GDRFAB_DEBUG=copier=FILE"),
    ("GDRFAB_SHM_RING_SLOTS", "GDRFAB_DEBUG=ring-slots=N"),
    ("GDRFAB_SHM_AREA_MAX", "GDRFAB_DEBUG=area-max=N"),
    ("GDRFAB_SHM_NT_THRESHOLD", "GDRFAB_DEBUG=nt-threshold=N"),
    ("GDRFAB_SHM_COOP", "GDRFAB_DEBUG=no-coop, or the option GDRFAB_OPT_COOP"),
    ("GDRFAB_SHM_COOP_MIN", "GDRFAB_DEBUG=coop-min=N"),
    ("GDRFAB_SHM_PIDFD", "GDRFAB_DEBUG=no-pidfd"),
    ("GDRFAB_SHM_MEMBARRIER", "GDRFAB_DEBUG=no-membarrier"),
    ("GDRFAB_TCP_PENDING", "GDRFAB_DEBUG=tcp-pending=N"),
    ("GDRFAB_TCP_STRANGERS", "GDRFAB_DEBUG=tcp-pending=N"),
    ("GDRFAB_TCP_GREETING_MS", "GDRFAB_DEBUG=tcp-greeting-ms=N"),
    ("GDRFAB_TCP_WINDOW", "GDRFAB_DEBUG=tcp-window=N"),
    ("GDRFAB_TCP_BUDGET", "GDRFAB_DEBUG=tcp-budget=N"),
    ("GDRFAB_VERBS_TX_SIZE", "tx_size of the info or the hints"),
    ("GDRFAB_VERBS_RX_SIZE", "rx_size of the info or the hints"),
    ("GDRFAB_VERBS_INLINE", "inject_size of the info or the hints, or GDRFAB_DEBUG=inline=N"),
    ("GDRFAB_VERBS_RNR_RETRIES", "the option GDRFAB_OPT_RNR_RETRY"),
    ("GDRFAB_VERBS_MIN_RNR_TIMER", "the option GDRFAB_OPT_MIN_RNR_TIMER"),
    ("GDRFAB_VERBS_REG_THREADS", "GDRFAB_DEBUG=reg-threads=N"),
    ("GDRFAB_VERBS_LIBRARY", "GDRFAB_DEBUG=ibverbs=FILE"),
    ("GDRFAB_RDMACM_LIBRARY", "GDRFAB_DEBUG=rdmacm=FILE"),
];

pub fn is_removed(name: &str) -> bool {
    REMOVED.iter().any(|(removed, _)| *removed == name)
}

/// The error of a variable of an earlier version that is set.
pub fn error((name, successor): &(&str, &str)) -> String {
    format!("{name} is no variable any more; instead there is {successor}")
}

#[cfg(test)]
mod tests {
    use super::super::{DEBUG_WORDS, VARIABLES, Variable};
    use super::*;

    #[test]
    fn successors_are_what_they_say() {
        let successors: Vec<&str> = REMOVED.iter().map(|(_, successor)| *successor).collect();
        for (name, successor) in REMOVED {
            assert!(VARIABLES.iter().all(|v| v.name != *name), "{name}");
            let named = successor.strip_prefix("GDRFAB_").and_then(|s| s.split([',', ' ']).next()?.split_once('='));
            if let Some((variable, value)) = named.filter(|(variable, _)| *variable != "DEBUG") {
                let known = VARIABLES.iter().find(|v| v.name.strip_prefix("GDRFAB_") == Some(variable));
                assert!(known.is_some_and(|v| v.kind.invalid_reason(value).is_none()), "{name}: {successor}");
            }
        }
        let words: Vec<&str> = successors.iter().filter_map(|s| s.split("GDRFAB_DEBUG=").nth(1)?.split(',').next()).collect();
        let known: Vec<String> = DEBUG_WORDS.iter().map(Variable::spelled).filter(|word| word != "desc").collect();
        assert!(words.iter().all(|word| known.iter().any(|k| k == word)), "{words:?}");
        assert!(known.iter().all(|word| words.contains(&word.as_str())), "{known:?}");
    }
}
