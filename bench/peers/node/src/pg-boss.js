// pg-boss: large batches, the next one fetched at once while they are full, and its limit of jobs per group as the fair
// mode.

import { readFileSync } from 'node:fs'

import pg from 'pg'
import { PgBoss } from 'pg-boss'

export const name = 'pg-boss'
export const version = JSON.parse(
  readFileSync(new URL('../node_modules/pg-boss/package.json', import.meta.url))
).version

// More fetches at a time only get into each other's way.
const FASTEST = { batchSize: 500, localConcurrency: 2, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 }
// A batch above the limit is never full, and so the worker would wait for its next poll after each one.
const FAIR = {
  batchSize: 2, groupConcurrency: 2, localConcurrency: 8, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5
}

export const modes = {
  fastest: words(FASTEST),
  fair: `groupConcurrency ${FAIR.groupConcurrency}, ${words(FAIR)}`
}

const QUEUE = 'bench'
const WOKEN_QUEUE = 'bench-woken'

export async function setup (url) {
  const boss = await start(url, 2)
  await boss.createQueue(QUEUE)
  await boss.createQueue(WOKEN_QUEUE, { notify: true })
  await boss.stop()
}

export async function remaining (url) {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  const { rows } = await client.query(
    "SELECT count(*)::int AS jobs FROM pgboss.job WHERE state NOT IN ('completed', 'cancelled', 'failed')"
  )
  await client.end()
  return rows[0].jobs
}

export async function openQueue (url, { connections, fair }) {
  return await open(url, connections, QUEUE, fair)
}

export async function openIdleQueue (url) {
  return await open(url, 1, WOKEN_QUEUE, false)
}

export async function startWorker (url, { concurrency, fair, fetch, onJob }) {
  const settings = fair ? FAIR : FASTEST
  const localConcurrency = concurrency ?? settings.localConcurrency
  const batchSize = fetch ?? settings.batchSize
  // A fetch and a completion at the same time for each worker.
  const boss = await start(url, localConcurrency + 1)
  await boss.work(QUEUE, { ...settings, batchSize, localConcurrency }, async jobs => {
    for (const { data } of jobs) {
      onJob(data.tenant)
    }
  })
  return stopper(boss)
}

export async function startIdleWorker (url, { onJob }) {
  const boss = await start(url, 2, { useListenNotify: true })
  await boss.work(WOKEN_QUEUE, {}, async ([{ data }]) => onJob(data.tenant))
  return stopper(boss)
}

async function open (url, connections, queue, fair) {
  const boss = await start(url, connections)
  const options = tenant => fair ? { group: { id: tenant } } : {}
  return {
    async add (tenants) {
      if (tenants.length === 1) {
        await boss.send(queue, { tenant: tenants[0] }, options(tenants[0]))
      } else {
        await boss.insert(queue, tenants.map(tenant => ({ data: { tenant }, ...options(tenant) })))
      }
    },
    async close () {
      await boss.stop()
    }
  }
}

// Without what runs on timers beside the jobs: schedules and maintenance.
async function start (url, connections, options = {}) {
  const boss = new PgBoss({ connectionString: url, max: connections, schedule: false, supervise: false, ...options })
  boss.on('error', error => console.error(error))
  return await boss.start()
}

function words ({ batchSize, localConcurrency }) {
  return `batchSize ${batchSize}, burstWhenBatchFull, localConcurrency ${localConcurrency}`
}

function stopper (boss) {
  return { stop: () => boss.stop() }
}
