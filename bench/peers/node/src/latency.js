// `latency`: one job at a time, with one idle worker in this process.

import { performance } from 'node:perf_hooks'

import { required } from './arguments.js'

const WARM_UP = 10
// Long enough for the worker to be idle again, and random so that no timer of the peer is always hit at the same point.
const PAUSE_MIN_MILLIS = 20
const PAUSE_SPREAD_MILLIS = 20

export async function latency ({ peer, url, samples }) {
  const wanted = required(samples, 'samples')
  let started
  const worker = await peer.startIdleWorker(url, { onJob: () => started(performance.now()) })
  const queue = await peer.openIdleQueue(url)
  const fromCall = []
  const fromCommit = []
  for (let sample = -WARM_UP; sample < wanted; sample++) {
    await new Promise(resolve => setTimeout(resolve, PAUSE_MIN_MILLIS + Math.random() * PAUSE_SPREAD_MILLIS))
    const start = new Promise(resolve => { started = resolve })
    const called = performance.now()
    await queue.add(['tenant-0'])
    const committed = performance.now()
    const ran = await start
    if (sample >= 0) {
      fromCall.push(Math.round((ran - called) * 1000))
      // The handler can start before the enqueuer has read the server's answer.
      fromCommit.push(Math.max(0, Math.round((ran - committed) * 1000)))
    }
  }
  await queue.close()
  await worker.stop()
  return { from_call_micros: fromCall, from_commit_micros: fromCommit }
}
