//! A macro for messages of scalars: it generates the struct, `parse` and `merge` from a list of fields.

use crate::scan::{Field, WireError};

/// A field that can be read from the wire.
pub(crate) trait FromField<'a>: Sized {
    fn from_field(field: &Field<'a>) -> Result<Self, WireError>;
}

impl<'a> FromField<'a> for &'a [u8] {
    fn from_field(field: &Field<'a>) -> Result<Self, WireError> {
        field.bytes()
    }
}

impl FromField<'_> for i64 {
    fn from_field(field: &Field<'_>) -> Result<Self, WireError> {
        Ok(field.varint()?.cast_signed())
    }
}

impl FromField<'_> for u64 {
    fn from_field(field: &Field<'_>) -> Result<Self, WireError> {
        field.varint()
    }
}

/// Enums: the low 32 bits of the varint.
impl FromField<'_> for i32 {
    fn from_field(field: &Field<'_>) -> Result<Self, WireError> {
        Ok(field.varint()? as i32)
    }
}

impl FromField<'_> for bool {
    fn from_field(field: &Field<'_>) -> Result<Self, WireError> {
        Ok(field.varint()? != 0)
    }
}

macro_rules! flat {
    ($($(#[$doc:meta])* $name:ident $(<$life:lifetime>)? { $($number:literal $field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            ///
            /// Fields have the names and meanings of etcd's `.proto` files.
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
            #[allow(missing_docs, reason = "etcd's own names")]
            pub struct $name $(<$life>)? {
                $(pub $field: $type,)*
            }

            impl $(<$life>)? $name $(<$life>)? {
                /// Parses the message.
                ///
                /// # Errors
                /// When the bytes are not such a message.
                pub fn parse(message: & $($life)? [u8]) -> Result<Self, $crate::scan::WireError> {
                    let mut read = Self::default();
                    read.merge(message)?;
                    Ok(read)
                }

                /// Merges another piece of the same message into this one.
                ///
                /// # Errors
                /// When the bytes are not such a message.
                pub fn merge(&mut self, piece: & $($life)? [u8]) -> Result<(), $crate::scan::WireError> {
                    for field in $crate::scan::Fields::new(piece) {
                        let field = field?;
                        match field.number {
                            $($number => self.$field = $crate::flat::FromField::from_field(&field)?,)*
                            _ => {}
                        }
                    }
                    Ok(())
                }
            }
        )*
    };
}
pub(crate) use flat;
