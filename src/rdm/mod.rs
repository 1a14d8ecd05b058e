// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connectionless endpoints over connected ones: each peer is reached by a lane, an endpoint of a provider that is connected
//! when the peer is first used. Providers do not know this layer; it uses their contract, and implements it for `fabric`.

pub mod matcher;
