// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parses the values of options.

use crate::cli::Args;

/// The largest size that is accepted.
const MAX_SIZE: usize = 1 << 40;

pub fn size(text: &str) -> Option<usize> {
    let upper = text.to_ascii_uppercase();
    let digits = upper.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &upper[digits.len()..] {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        _ => return None,
    };
    digits.parse::<usize>().ok()?.checked_mul(1 << shift).filter(|n| (1..=MAX_SIZE).contains(n))
}

pub fn seconds(args: &mut Args, option: &str) -> Result<f64, String> {
    let s: f64 = args.number(option, "seconds")?;
    if (0.001..=86400.0).contains(&s) { Ok(s) } else { Err(format!("{option} {s}: 0.001 to 86400 seconds are expected")) }
}
