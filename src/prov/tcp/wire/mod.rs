// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The formats of the bytes that two endpoints exchange, as `docs/tcp-wire.md` specifies them. Nothing here touches a socket.
//!
//! In: bytes that a peer sent, not trusted. Out: values that are within their bounds, or an error that ends the connection.
//! The code that holds a connection's state makes the checks that need this state.
//!
//! - `address`: `tcp://host:port/token`, the text by which an endpoint is named
//! - `hello`: the four messages of the handshake, and the versions of the format
//! - `frame`: the header of every frame of a connection; read this file first
//! - `segment`: the pieces into which the stream of frames is cut if the connection has several rails

pub mod address;
pub mod frame;
pub mod hello;
pub mod segment;
