// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connection request. A listener makes it, the event queue carries it, and the caller accepts or rejects it.

use super::info::Info;
use crate::error::{Error, Result};
use std::any::Any;

/// A peer that wants to connect. Dropping the request rejects it.
pub trait Request: Any + Send {
    /// The peer's address.
    fn from(&self) -> String;

    /// The private data that the peer sent.
    fn data(&self) -> &[u8];

    /// Changes a copy of the passive endpoint's info into that of the device or address at which the request arrived.
    fn adjust(&self, _info: &mut Info) {}

    /// Rejects the peer, and sends it `data`.
    fn reject(self: Box<Self>, data: &[u8]) -> Result<()>;
}

/// Casts a request to the provider's own type, for `accept`.
pub fn own_request<R: Request>(request: Box<dyn Request>) -> Result<R> {
    let any: Box<dyn Any> = request;
    any.downcast().map(|r| *r).map_err(|_| Error::invalid("info->handle: the connection request belongs to another provider"))
}
