// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds mistyped variables: names that nearly equal the name of a variable of the library. A mistyped variable has no
//! effect, so without a report nobody would notice the mistake.

use super::names::SECURITY;
use super::table::VARIABLES;

/// Prefixes of variables that plugins and tests read themselves.
const OTHERS: [&str; 3] = ["GDRFAB_NCCL_", "GDRFAB_NIXL_", "GDRFAB_FAKE"];
/// Largest number of wrong letters in a mistyped name.
const MAX_DISTANCE: usize = 2;
/// Least number of letters that a mistyped name shares with a name of [`SECURITY`] if one of the two is the beginning of
/// the other: "GDRFABTCPKEY" has 12 letters, and is taken for GDRFAB_TCP_KEY_FILE.
const MIN_PREFIX: usize = 12;

/// True if the name is neither the library's nor a plugin's.
pub fn is_unknown(name: &str) -> bool {
    VARIABLES.iter().all(|v| v.name != name) && !OTHERS.iter().any(|prefix| name.starts_with(prefix))
}

/// The letters that are compared. Underscores are left out, because they are often forgotten or added.
fn letters(name: &str) -> Vec<u8> {
    name.bytes().filter(|b| *b != b'_').map(|b| b.to_ascii_uppercase()).collect()
}

/// The edit distance: the number of letters that have to be changed, added, left out, or swapped with their neighbour, to
/// make one name out of the other.
fn distance(a: &[u8], b: &[u8]) -> usize {
    let width = b.len() + 1;
    let mut rows: Vec<usize> = (0..width).collect();
    for (i, x) in a.iter().enumerate() {
        for j in 0..width {
            let above = rows[i * width + j] + 1;
            let Some(before) = j.checked_sub(1) else {
                rows.push(above);
                continue;
            };
            let changed = rows[i * width + before] + usize::from(*x != b[before]);
            let mut best = above.min(rows[(i + 1) * width + before] + 1).min(changed);
            if i > 0 && before > 0 && *x == b[before - 1] && a[i - 1] == b[before] {
                best = best.min(rows[(i - 1) * width + before - 1] + 1);
            }
            rows.push(best);
        }
    }
    rows.last().copied().unwrap_or_default()
}

/// The variable of the library that the user of an unknown name probably meant; `None`: the name is known, or resembles no
/// variable.
pub fn meant(name: &str) -> Option<&'static str> {
    // A much longer name resembles none, and comparing it would take long.
    if name.len() > 64 || !is_unknown(name) {
        return None;
    }
    let given = letters(name);
    let near = VARIABLES.iter().map(|v| (distance(&given, &letters(v.name)), v.name)).filter(|(far, _)| *far <= MAX_DISTANCE);
    near.min().map(|(_, known)| known).or_else(|| SECURITY.into_iter().find(|known| is_prefix_of_other(&given, &letters(known))))
}

/// True if one name is the beginning of the other.
fn is_prefix_of_other(a: &[u8], b: &[u8]) -> bool {
    a.len().min(b.len()) >= MIN_PREFIX && (a.starts_with(b) || b.starts_with(a))
}

/// The error of a name that is a mistyped variable of [`SECURITY`], which decide who may connect; `None` for other names.
pub fn security_typo(name: &str) -> Option<String> {
    let known = meant(name).filter(|known| SECURITY.contains(known))?;
    Some(format!("{name} is no variable of this library, and has no effect; {known} decides who may connect"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_name_is_known_again() {
        for (name, known) in [
            ("GDRFAB_TCP_KEYFILE", "GDRFAB_TCP_KEY_FILE"),
            ("GDRFAB_TCP_KEY_FIEL", "GDRFAB_TCP_KEY_FILE"),
            ("GDRFAB_TCP_KEY_FILES", "GDRFAB_TCP_KEY_FILE"),
            ("GDRFAB_TCP_KEY", "GDRFAB_TCP_KEY_FILE"),
            ("GDRFAB_TCP_KEY_FILE_PATH", "GDRFAB_TCP_KEY_FILE"),
            ("GDRFAB_tcp_key_file", "GDRFAB_TCP_KEY_FILE"),
            ("GDRFABTCP_KEY_FILE", "GDRFAB_TCP_KEY_FILE"),
            ("GDRFAB_TCP_SECURTIY", "GDRFAB_TCP_SECURITY"),
            ("GDRFAB_SHM_USER", "GDRFAB_SHM_USERS"),
            ("GDRFAB_SPINUS", "GDRFAB_SPIN_US"),
        ] {
            assert_eq!(meant(name), Some(known), "{name}");
            assert_eq!(security_typo(name).is_some(), SECURITY.contains(&known), "{name}");
        }
        for name in ["GDRFAB_NO_SUCH_VARIABLE", "GDRFAB_NCCL_KEY_FILE", "GDRFAB_TCP_", "GDRFAB_", "", "GDRFAB_FAKES"] {
            assert_eq!(meant(name), None, "{name}");
        }
        assert!(meant(&"GDRFAB_".repeat(10_000)).is_none());
        assert!(VARIABLES.iter().all(|v| meant(v.name).is_none() && security_typo(v.name).is_none()));
        assert!(SECURITY.iter().all(|name| VARIABLES.iter().any(|v| v.name == *name)));
    }

    #[test]
    fn letters_that_differ_are_counted() {
        for (a, b, far) in
            [("", "", 0), ("a", "", 1), ("", "ab", 2), ("abc", "abc", 0), ("abc", "acb", 1), ("abc", "xbz", 2), ("ab", "ba", 1)]
        {
            assert_eq!(distance(a.as_bytes(), b.as_bytes()), far, "{a:?} {b:?}");
        }
    }
}
