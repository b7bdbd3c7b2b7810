//! The data of events for the handler `orders`, in several sizes. The handler reads one field of the data. The other
//! fields are the items of the order, so larger data has more items.

/// The end of the data, after the items and before the note.
const NOTE: &str = "],\"note\":\"";
/// The end of the data, after the note.
const END: &str = "\"}";
/// The names of the items.
const ITEMS: [&str; 4] = ["coffee", "crème", "tea", "sugar"];

/// Writes a JSON object of `size` bytes with the amount of an order, its items, and a note that fills the object up to
/// the size. `number` selects the items.
pub(super) fn write(data: &mut String, size: usize, number: u64, amount_cents: u64) {
    *data += &format!("{{\"amount_cents\":{amount_cents},\"items\":[");
    for at in 0.. {
        let sku = number.wrapping_mul(31).wrapping_add(at) % 1_000_000;
        let name = ITEMS[sku as usize % ITEMS.len()];
        let (separator, count, cents) = (if at == 0 { "" } else { "," }, sku % 9 + 1, sku % 5_000);
        let item = format!(
            "{separator}{{\"sku\":\"{sku:06}\",\"name\":\"{name}\",\"count\":{count},\"cents\":{cents}}}"
        );
        if data.len() + item.len() + NOTE.len() + END.len() > size {
            break;
        }
        *data += &item;
    }
    *data += NOTE;
    let room = size.saturating_sub(data.len() + END.len());
    data.extend(std::iter::repeat_n('x', room));
    *data += END;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_json_of_the_requested_size() -> anyhow::Result<()> {
        for size in [100, 1_000, 8_000] {
            for number in [0, 17, 199_999] {
                let mut data = String::new();
                write(&mut data, size, number, 1_100);
                assert_eq!(data.len(), size, "{data}");
                let value: serde_json::Value = serde_json::from_str(&data)?;
                assert_eq!(value["amount_cents"], 1_100);
                let items = value["items"].as_array().map_or(0, Vec::len);
                assert!(items >= size / 100, "{items} items in {size} bytes");
            }
        }
        Ok(())
    }
}
