// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connection request on its way from a listener, through the event queue, to whoever accepts or rejects it.

use super::info::Info;
use crate::error::{Error, Result};
use std::any::Any;

/// A peer that wants to connect. Dropped, it is rejected.
pub trait Request: Any + Send {
    /// The peer's address.
    fn from(&self) -> String;

    /// Private data that it sent.
    fn data(&self) -> &[u8];

    /// Makes a passive endpoint's info that of the place which the request came through.
    fn adjust(&self, _info: &mut Info) {}

    /// Sends the peer away with `data`.
    fn reject(self: Box<Self>, data: &[u8]) -> Result<()>;
}

/// The request of one's own kind, for `accept`.
pub fn own_request<R: Request>(request: Box<dyn Request>) -> Result<R> {
    let any: Box<dyn Any> = request;
    any.downcast().map(|r| *r).map_err(|_| Error::invalid("info->handle: a request of another provider"))
}
