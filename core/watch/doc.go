// SPDX-License-Identifier: Apache-2.0

// Package watch converts Kubernetes objects to core/model and follows an API server.
// It and core/manifests are the only packages of the core that use Kubernetes types.
//
//	API server ──list, watch──▶ follower ──object──▶ Service, Slice, Node ──▶ Sink
//	                            one goroutine         the converters, pure    the engine
//	                            a kind of object
//
// # The converters
//
//	*corev1.Service ────────▶ Service ──▶ *model.Service ┐
//	*discoveryv1.EndpointSlice ▶ Slice ─▶ *model.Slice   ├─ and what was rejected
//	*corev1.Node ───────────▶ Node ─────▶ *model.Node    ├  in them, as []model.Problem
//	*networkingv1.ServiceCIDR ▶ ServiceCIDR ▶ *model.ServiceCIDR │
//	*gateway.TCPRoute ──────▶ TCPRoute, UDPRoute ▶ *model.Route │
//	*gateway.ReferenceGrant ▶ ReferenceGrant ▶ *model.Grant ┘
//
// The converters are pure and trust no input, since manifests in a folder have not
// passed an API server that validates them or applies defaults: they apply
// Kubernetes' defaults themselves, keep whatever is usable of an object, and report
// the rest. They never panic, keep no reference to their argument and may be called
// from any goroutine.
//
// The Detail of every problem starts with the path of the field it is about, such as
// "spec.ports[1].port: 70000". FieldPath returns that path, for callers that know the
// field's line.
//
// # The source
//
// A Source follows Services, EndpointSlices, this machine's own Node, ServiceCIDRs,
// other Nodes once an external IP may be the address of one, and with --gateway-routes TCPRoutes,
// UDPRoutes and ReferenceGrants. Objects are converted as they are decoded and dropped: of
// each only its name, resource version and whether it is served stay here. It uses
// client-go's REST client directly, not a Reflector: a Reflector holds every object
// twice while it lists, lists everything again after most errors, backs off from an
// unreachable server as from an overloaded one, and cannot distinguish an idle watch
// from a dead one.
//
// Existing objects are passed on before deletions, and nothing is deleted because of
// an incomplete list. Synced is called once Services and EndpointSlices are complete;
// afterwards every event is passed on at once.
//
// The Node, ServiceCIDRs and custom resources are waited for up to five seconds; then Unread
// says which of them are still unknown. That is not "none": what depends on them stays as an
// earlier run has programmed it (core/engine, inputs.go). A kind that the server does not have
// (404) is none: a custom resource only after a few answers, since those come last when a
// server starts. A permission that is missing (403) may come, too, as a starting server has no
// rules yet. Where it stays so the Node and routes are done without; ServiceCIDRs remain unknown,
// so that the ranges that are installed stay until the permission is back, or a cleanup.
//
// Custom resources may be missing, come and go, and be served in one of several
// versions (gateway.RouteVersions): a server that has none of them, or forbids them, is
// asked again after ten minutes. Once there is no such kind any more its objects are
// removed from the sink; while a server only fails they are kept.
//
// Lists are streamed, or come in pages where a server cannot do that: see
// follower. No answer is unbounded, redirects to another server are refused, and
// a failure that lasts is logged whatever its text: see boundedTransport and failureLog.
//
// # Signs of life
//
// A watch may be quiet for days. A server with anything to watch sends a bookmark
// about once a minute, and the HTTP/2 connection under it answers pings (client-go
// asks after 30 s of silence and gives up 15 s later), but a server may send no
// bookmarks, and one that hangs may still answer pings. So a watch without an event
// or a bookmark for 70 s is cancelled and resumed at the same version. If the server
// answers, it is alive and nothing was lost, unless it has sent bookmarks before: then
// only an event or a bookmark counts. Otherwise Source.Stale reports it 85 s after the
// last sign of life.
//
// # Libraries that are not used
//
// client-go's reflector lists everything again after most errors. component-base's metrics of
// clients (metrics/prometheus/restclient) register themselves, on import, in a registry of the
// process, with all else that has done so; they would bring 16 packages, parts of OpenTelemetry
// among them. ClientMetrics are the same names for a registry of the caller's.
package watch
