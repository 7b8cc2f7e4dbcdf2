//! Every promise of the store contract, on PostgreSQL.

use evenhand_testkit::postgres::PostgresUnderTest;

evenhand_testkit::conformance_suite!(PostgresUnderTest);
