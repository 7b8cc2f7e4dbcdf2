// What the processes of one run share: the start, so that none works while another still loads its code, and the
// number of jobs that were run, so that all know when the queue is drained.
//
// The table is unlogged and each process updates its own row, so that it costs the server no flush and no waiting.

import pg from 'pg'

const START_PAUSE_MILLIS = 2
const START_DEADLINE_MILLIS = 60_000

export async function createGate (url) {
  await withClient(url, async client => {
    await client.query('CREATE UNLOGGED TABLE IF NOT EXISTS bench_done (process int PRIMARY KEY, jobs bigint NOT NULL)')
    await client.query('TRUNCATE bench_done')
  })
}

// Waits until as many processes have joined.
export async function waitForWorkers (url, processes) {
  await withClient(url, client => wait(client, processes))
}

export class Gate {
  #client

  // Joins, and waits until all others have.
  static async join (url, processes) {
    const gate = new Gate()
    gate.#client = new pg.Client({ connectionString: url })
    await gate.#client.connect()
    await gate.#client.query('INSERT INTO bench_done VALUES ($1, 0)', [process.pid])
    await wait(gate.#client, processes)
    return gate
  }

  // Says how many jobs this process has run, and answers how many all have.
  async report (jobs) {
    await this.#client.query({
      name: 'report',
      text: 'UPDATE bench_done SET jobs = $2 WHERE process = $1',
      values: [process.pid, jobs]
    })
    const { rows } = await this.#client.query({
      name: 'total',
      text: 'SELECT sum(jobs)::float8 AS jobs FROM bench_done'
    })
    return rows[0].jobs
  }

  async leave () {
    await this.#client.end()
  }
}

async function wait (client, processes) {
  const deadline = Date.now() + START_DEADLINE_MILLIS
  for (;;) {
    const { rows } = await client.query('SELECT count(*)::int AS processes FROM bench_done')
    if (rows[0].processes >= processes) {
      return
    }
    if (Date.now() > deadline) {
      throw new Error(`only ${rows[0].processes} of ${processes} processes have started`)
    }
    await new Promise(resolve => setTimeout(resolve, START_PAUSE_MILLIS))
  }
}

async function withClient (url, use) {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  try {
    return await use(client)
  } finally {
    await client.end()
  }
}
