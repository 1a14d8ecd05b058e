// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Matching of messages and receives: the rules of sources, tags and masks, and nothing else.
//!
//! The program posts receives, and messages arrive for which no receive was posted; the matcher stores both. For a new
//! message, it finds the oldest receive that fits the message; for a new receive, the oldest message. This folder knows
//! no peers, lanes or buffers: both kinds of entries are type parameters of [`matcher::Matcher`].
//!
//! Read `matcher` first. `posted_receives` is its table of receives, `message_lists` its lists of messages, and `tag_hash` a hash in which
//! peers cannot provoke collisions by their choice of tags.

pub mod matcher;
pub(in crate::rdm) mod message_lists;
pub(in crate::rdm) mod posted_receives;
pub(in crate::rdm) mod tag_hash;
