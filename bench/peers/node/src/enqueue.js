// `enqueue` and `enqueue-load`.

import { performance } from 'node:perf_hooks'

import { required } from './arguments.js'
import { waitForWorkers } from './gate.js'

const WARM_UP = 3
const LOAD_TENANTS = Array.from({ length: 8 }, (_, index) => `tenant-${index}`)

// The jobs of one tenant after those of another, in the order given.
export async function enqueue ({ peer, url, tenants, batch, fair }) {
  const wanted = required(tenants, 'tenants')
  const queue = await peer.openQueue(url, { connections: 1, fair })
  const start = performance.now()
  let total = 0
  for (const { tenant, jobs } of wanted) {
    for (let left = jobs; left > 0; left -= batch) {
      await queue.add(Array(Math.min(batch, left)).fill(tenant))
    }
    total += jobs
  }
  const seconds = (performance.now() - start) / 1000
  await queue.close()
  return { jobs: total, seconds }
}

// As fast as the clients can, each with a connection of its own and one call at a time.
export async function enqueueLoad ({ peer, url, clients, millis, batch, busy, fair }) {
  required(millis, 'millis')
  const queue = await peer.openQueue(url, { connections: clients, fair })
  await waitForWorkers(url, busy)
  // The first calls also open the connections.
  for (let call = 0; call < WARM_UP; call++) {
    await Promise.all(Array.from({ length: clients }, () => queue.add(Array(batch).fill(LOAD_TENANTS[0]))))
  }
  const start = performance.now()
  const end = start + millis
  let jobs = 0
  const client = async index => {
    for (let turn = index; performance.now() < end; turn++) {
      await queue.add(Array(batch).fill(LOAD_TENANTS[turn % LOAD_TENANTS.length]))
      jobs += batch
    }
  }
  await Promise.all(Array.from({ length: clients }, (_, index) => client(index)))
  const elapsed = (performance.now() - start) / 1000
  await queue.close()
  return { jobs, seconds: elapsed, per_second: jobs / elapsed }
}
