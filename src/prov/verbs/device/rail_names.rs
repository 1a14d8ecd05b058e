// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parses `GDRFAB_VERBS_RAILS`, which names ports, or is `all`. No port is opened here.

use crate::config;
use crate::error::{Error, Result, errno};

pub use crate::prov::bind::RAILS_MAX;

/// True if all ports of the host are rails.
pub fn all() -> bool {
    config::get().verbs.rails == ["all"]
}

/// The device and the port that an element of the list names.
pub fn parse(word: &str) -> Result<(&str, u8)> {
    let (device, port) = word.rsplit_once(':').unwrap_or((word, "1"));
    let port = port.parse().map_err(|_| Error::invalid(format!("GDRFAB_VERBS_RAILS: {word:?} is not of the form device:port")))?;
    Ok((device, port))
}

/// Checks that the list names devices of this host, each port once.
pub fn check(devices: &[String]) -> Result<()> {
    let rails = &config::get().verbs.rails;
    if all() {
        return Ok(());
    }
    if rails.len() > RAILS_MAX {
        return Err(Error::invalid(format!("GDRFAB_VERBS_RAILS: {} ports, at most {RAILS_MAX} are possible", rails.len())));
    }
    for (i, word) in rails.iter().enumerate() {
        let (device, port) = parse(word)?;
        if !devices.iter().any(|d| d == device) {
            let words = format!("GDRFAB_VERBS_RAILS: {word:?} is not an RDMA device of this host, which has {}", devices.join(" "));
            return Err(Error::new(errno::ENODEV, words));
        }
        if rails.iter().take(i).any(|other| parse(other).is_ok_and(|other| other == (device, port))) {
            return Err(Error::invalid(format!("GDRFAB_VERBS_RAILS: names {word:?} twice")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_list() {
        assert_eq!(parse("mlx5_0:2").unwrap(), ("mlx5_0", 2));
        assert_eq!(parse("rxe1").unwrap(), ("rxe1", 1));
        assert!(parse("rxe1:x").is_err() && parse("rxe1:300").is_err());
    }
}
