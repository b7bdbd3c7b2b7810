//! Lists of rows that a process can write and read with little memory.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};

/// The maximum number of rows that are read: far more than a page has. The limit protects the memory of this process
/// against a server that is not Ordain. Such a server can send a row in 2 bytes of JSON, and the row takes hundreds of
/// bytes in memory.
const ROWS_LIMIT: usize = 100_000;

/// A list of rows that were read; at most 100,000.
#[derive(Debug)]
pub struct BoundedRows<R>(pub Vec<R>);

impl<'de, R: Deserialize<'de>> Deserialize<'de> for BoundedRows<R> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_seq(RowsVisitor(PhantomData))
    }
}

struct RowsVisitor<R>(PhantomData<R>);

impl<'de, R: Deserialize<'de>> Visitor<'de> for RowsVisitor<R> {
    type Value = BoundedRows<R>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of rows")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<BoundedRows<R>, A::Error> {
        let mut rows = Vec::new();
        while let Some(row) = list.next_element()? {
            if rows.len() == ROWS_LIMIT {
                return Err(A::Error::custom(format!("more than {ROWS_LIMIT} rows")));
            }
            rows.push(row);
        }
        Ok(BoundedRows(rows))
    }
}

/// A list of rows that are built one at a time, while the list is written.
#[derive(Debug)]
pub struct LazyRows<'a, T, F>(pub &'a [T], pub F);

impl<T, R: Serialize, F: Fn(&T) -> R> Serialize for LazyRows<'_, T, F> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.0.iter().map(&self.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::{DeadPage, to_json};

    #[test]
    fn list_has_a_row_limit() {
        let list = |rows: usize| format!("[{}0]", "0,".repeat(rows - 1));
        let rows: BoundedRows<u8> = serde_json::from_str(&list(ROWS_LIMIT)).unwrap();
        assert_eq!(rows.0.len(), ROWS_LIMIT);
        let error = serde_json::from_str::<BoundedRows<u8>>(&list(ROWS_LIMIT + 1)).unwrap_err();
        assert!(error.to_string().starts_with("more than 100000 rows"), "{error}");
    }

    #[test]
    fn lazy_rows_are_written_as_a_list() {
        let page = DeadPage { dead: LazyRows(&[1, 2], |row: &u8| row * 2), cursor: None };
        assert_eq!(to_json(&page), r#"{"dead":[2,4],"cursor":null}"#);
    }
}
