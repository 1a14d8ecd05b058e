// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The macro that makes a table of variables, and the structs with the variables' values.

/// Makes the list `$list` of all variables, and for each `struct` a struct that holds the values of its variables. The
/// variables of a purpose stand together: `Goal { field: type = name, kind, default, help; ... }`; without `field: type =`
/// a variable is in the list only. `Group { part: inner }` adds the struct `inner` as the field `part`. The function
/// `read()` of a struct makes the values; its argument returns the text of the variable with a given name.
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
                $($($( #[doc = concat!("The value of `", $name, "`.")] pub $field: $type, )?)*)*
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
