// One command line for every peer: see ../../README.md.

import { readArguments } from './arguments.js'
import { enqueue, enqueueLoad } from './enqueue.js'
import { latency } from './latency.js'
import { createGate } from './gate.js'
import { work } from './work.js'

const peers = {
  'graphile-worker': () => import('./graphile-worker.js'),
  'pg-boss': () => import('./pg-boss.js')
}

const commands = {
  // Imports the peer, and so shows that it is installed and that this Node can run it.
  async describe ({ peer }) {
    return { peer: peer.name, version: peer.version, runtime: `Node ${process.versions.node}`, modes: peer.modes }
  },
  async setup ({ peer, url }) {
    await peer.setup(url)
    await createGate(url)
  },
  async remaining ({ peer, url }) {
    return { remaining: await peer.remaining(url) }
  },
  enqueue,
  'enqueue-load': enqueueLoad,
  work,
  latency
}

const options = readArguments(process.argv.slice(2), Object.keys(peers), Object.keys(commands))
const peer = await peers[options.peer]()
if (options.fair && !peer.modes.fair) {
  throw new Error(`${peer.name} has no fair mode`)
}
const answer = await commands[options.command]({ ...options, peer })
if (answer !== undefined) {
  console.log(JSON.stringify(answer))
}
// Peers leave timers and listeners behind that would keep an otherwise finished process alive for seconds.
process.exit(0)
