// The wall clock in microseconds, as all processes of this machine read it.

import { performance } from 'node:perf_hooks'

export function wallMicros () {
  return Math.round((performance.timeOrigin + performance.now()) * 1000)
}
