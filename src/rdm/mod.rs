// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connectionless endpoints over connected ones: each peer is reached by a lane, an endpoint of a provider that is connected
//! when the peer is first used. Providers do not know this layer; it uses their contract, and implements it for `fabric`.

pub mod matcher;

use crate::error::{Error, Result, errno};
use crate::prov::Provider;
use crate::prov::info::{Ask, Info};

/// Candidates for connectionless endpoints, best first.
pub fn candidates(_ask: &Ask<'_>, _wanted: impl Fn(&str) -> bool) -> Vec<Info> {
    Vec::new()
}

/// What opens domains of connectionless endpoints over the providers that the name joins by '+'.
pub fn get(name: Option<&str>) -> Result<&'static dyn Provider> {
    let words = format!("info->prov_name: no connectionless endpoints over {:?}", name.unwrap_or("nothing"));
    Err(Error::new(errno::ENODEV, words))
}
