// SPDX-License-Identifier: Apache-2.0

// Package watch turns what Kubernetes says into Tandem's vocabulary. It and
// core/manifests are the only packages of the core that know Kubernetes types.
//
//	API server ──list, watch──▶ follower ──object──▶ Service, Slice, Node ──▶ Sink
//	                            one goroutine         the converters, pure    the engine
//	                            a kind of object
//
// # The converters
//
//	*corev1.Service ────────▶ Service ──▶ *model.Service ┐
//	*discoveryv1.EndpointSlice ▶ Slice ─▶ *model.Slice   ├─ and what was refused
//	*corev1.Node ───────────▶ Node ─────▶ *model.Node    ├  in them, as []model.Problem
//	*networkingv1.ServiceCIDR ▶ ServiceCIDR ▶ *model.ServiceCIDR ┘
//
// The converters are pure and trust nothing, since a folder of manifests has
// no API server that validates or fills in defaults: they apply Kubernetes'
// defaults themselves, keep whatever is usable of an object, and report the
// rest. They never panic, keep no reference to their argument and may be
// called from any goroutine.
//
// The Detail of every problem starts with the path of the field it is about,
// such as "spec.ports[1].port: 70000". FieldPath cuts it off again, for those
// who know the line of that field.
//
// # The source
//
// A Source follows Services, EndpointSlices, this machine's own Node and, where
// there are any, ServiceCIDRs. Objects are converted as they are decoded and
// dropped: of each only its name, resource version and whether it is served
// stay here. It asks client-go's REST client itself, and not through a
// Reflector, because that one holds every object twice while it lists, lists
// all again after most errors, paces a server that is down like one that is
// overloaded, and cannot distinguish a quiet watch from a dead one.
//
// What exists is passed on before what is gone, and nothing is ever deleted on the
// base of a list that did not end. Synced is called once Services and
// EndpointSlices are complete; from then on every event is passed on at once.
//
// Lists are streamed, or come in pages where a server cannot do that: see
// follower. No answer is unbounded, redirects to another server are refused, and
// a failure that lasts is logged whatever its text: see boundedTransport and failureLog.
//
// # Signs of life
//
// A watch may be quiet for days. A server with anything to watch sends a
// bookmark about once a minute, and the HTTP/2 connection under it answers
// pings (client-go asks after 30 s of silence and gives up 15 s later), but a
// server may send no bookmarks, and one that hangs may still answer pings. So a
// watch without an event or a bookmark for 70 s is cut and begun again where it
// ended. A server that then answers is alive and has sent everything, unless it is
// one that sends bookmarks: of that one only an event or a bookmark counts. One that
// does neither is reported by Source.Stale 85 s after its last word.
package watch
