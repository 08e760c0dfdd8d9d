//! Queries of the list of sandboxes, whose metadata filter is encoded three times.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sandhold_e2b::wire::ListQuery;

fuzz_target!(|query: &str| {
    // Whatever is understood means the same when it is written down again.
    if let Ok(read) = ListQuery::from_query(query) {
        assert_eq!(ListQuery::from_query(&read.to_query()), Ok(read));
    }
});
