//! Every promise of the store contract.

use evenhand_testkit::postgres::PostgresUnderTest;

evenhand_testkit::conformance_suite!(PostgresUnderTest);
