//! Storms of reservers and claimers while connections are cut and servers crash.
