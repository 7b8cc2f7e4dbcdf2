// graphile-worker, on the settings of its own page about performance: 24 jobs at a time, a local queue of 500, and
// completions in batches.

import { readFileSync } from 'node:fs'

import { Logger, makeWorkerUtils, run } from 'graphile-worker'
import pg from 'pg'

export const name = 'graphile-worker'
export const version = JSON.parse(
  readFileSync(new URL('../node_modules/graphile-worker/package.json', import.meta.url))
).version
const FASTEST = { concurrency: 24, fetch: 500 }

export const modes = {
  fastest: `localQueue ${FASTEST.fetch}, completeJobBatchDelay 0, concurrentJobs ${FASTEST.concurrency}`
}

const TASK = 'bench'

const logger = new Logger(() => (level, message) => {
  if (level === 'error' || level === 'warning') {
    console.error(message)
  }
})

export async function setup (url) {
  const utils = await makeWorkerUtils({ connectionString: url, logger })
  await utils.migrate()
  await utils.release()
}

export async function remaining (url) {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  const { rows } = await client.query('SELECT count(*)::int AS jobs FROM graphile_worker._private_jobs')
  await client.end()
  return rows[0].jobs
}

export async function openQueue (url, { connections }) {
  const pgPool = new pg.Pool({ connectionString: url, max: connections })
  // The library warns on every start about a pool without these.
  pgPool.on('error', report)
  pgPool.on('connect', client => client.on('error', report))
  const utils = await makeWorkerUtils({ pgPool, logger })
  return {
    async add (tenants) {
      if (tenants.length === 1) {
        await utils.addJob(TASK, { tenant: tenants[0] })
      } else {
        await utils.addJobs(tenants.map(tenant => ({ identifier: TASK, payload: { tenant } })))
      }
    },
    async close () {
      await utils.release()
      await pgPool.end()
    }
  }
}

export function startWorker (url, { concurrency = FASTEST.concurrency, fetch = FASTEST.fetch, onJob }) {
  return start(url, concurrency, { localQueue: { size: fetch }, completeJobBatchDelay: 0, failJobBatchDelay: 0 }, onJob)
}

// NOTIFY wakes a worker; without a local queue it fetches at once.
export function startIdleWorker (url, { onJob }) {
  return start(url, 1, {}, onJob)
}

export function openIdleQueue (url) {
  return openQueue(url, { connections: 1 })
}

async function start (url, concurrency, batching, onJob) {
  return await run({
    preset: { worker: { connectionString: url, concurrentJobs: concurrency, maxPoolSize: concurrency + 2, ...batching } },
    taskList: { [TASK]: async ({ tenant }) => onJob(tenant) },
    parsedCronItems: [],
    noHandleSignals: true,
    logger
  })
}

function report (error) {
  console.error(error)
}
