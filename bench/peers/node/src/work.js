// `work`: runs no-op jobs until all processes together have run as many as asked, or for ever.

import { writeFile } from 'node:fs/promises'

import { wallMicros } from './clock.js'
import { Gate } from './gate.js'

const REPORT_PAUSE_MILLIS = 20

export async function work ({ peer, url, concurrency, processes, until = Infinity, fair, fetch, order }) {
  const runs = new Runs(order !== undefined)
  const gate = await Gate.join(url, processes)
  const before = process.cpuUsage()
  const worker = await peer.startWorker(url, { concurrency, fair, fetch, onJob: tenant => runs.note(tenant) })
  while (await gate.report(runs.jobs) < until) {
    await new Promise(resolve => setTimeout(resolve, REPORT_PAUSE_MILLIS))
  }
  // Completions that the peer has batched belong to the work.
  await worker.stop()
  const cpu = process.cpuUsage(before)
  await gate.leave()
  if (order !== undefined) {
    await writeFile(order, runs.lines())
  }
  return {
    jobs: runs.jobs,
    seconds: runs.jobs > 0 ? (runs.last - runs.first) / 1e6 : 0,
    first_start_micros: runs.first,
    last_end_micros: runs.last,
    rss_max_bytes: process.resourceUsage().maxRSS * 1024,
    cpu_seconds: (cpu.user + cpu.system) / 1e6
  }
}

// The jobs that this process has run. They do nothing, so a job's start is its end.
class Runs {
  jobs = 0
  first = null
  last = null
  #order

  constructor (keepOrder) {
    this.#order = keepOrder ? [] : null
  }

  note (tenant) {
    const now = wallMicros()
    this.first ??= now
    this.last = now
    this.jobs += 1
    this.#order?.push(now, tenant)
  }

  lines () {
    let text = ''
    for (let index = 0; index < this.#order.length; index += 2) {
      text += `${this.#order[index]} ${this.#order[index + 1]}\n`
    }
    return text
  }
}
