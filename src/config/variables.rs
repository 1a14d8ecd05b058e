// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The macro that makes a table of variables and the structs with their values.

/// Makes a list of variables, and the structs that hold their values. `read()` of a struct asks a function for the text
/// of each variable, by its name.
macro_rules! variables {
    (
        $(#[$list_doc:meta])*
        $list:ident;
        $(
            $(#[$doc:meta])*
            struct $group:ident { $($part:ident: $inner:ident),* }
            $( $goal:ident { $( $($field:ident: $type:ty =)? $name:literal, $kind:expr, $default:literal, $help:literal; )* } )*
        )*
    ) => {
        $(#[$list_doc])*
        pub const $list: &[Variable] = &[$($($(
            Variable { goal: Goal::$goal, name: $name, kind: $kind, default: $default, help: $help },
        )*)*)*];
        $(
            $(#[$doc])*
            #[derive(Debug, Clone)]
            pub struct $group {
                $(pub $part: $inner,)*
                $($($( #[doc = $help] pub $field: $type, )?)*)*
            }

            impl $group {
                pub fn read(text: &dyn Fn(&str) -> Option<String>) -> $group {
                    $group {
                        $($part: $inner::read(text),)*
                        $($($( $field: {
                            let variable = Variable { goal: Goal::$goal, name: $name, kind: $kind, default: $default, help: $help };
                            <$type>::of_variable(&variable, text($name))
                        }, )?)*)*
                    }
                }
            }
        )*
    };
}
pub(super) use variables;
