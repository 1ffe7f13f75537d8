// SPDX-License-Identifier: Apache-2.0

package tracing

import (
	"crypto/rand"
	"time"

	collector "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/slim/otlp/common/v1"
	resource "go.opentelemetry.io/proto/slim/otlp/resource/v1"
	trace "go.opentelemetry.io/proto/slim/otlp/trace/v1"

	"github.com/tandem-proxy/tandem/core/history"
)

// request is what a collector gets of some changes.
func (x *Exporter) request(all []history.Entry) *collector.ExportTraceServiceRequest {
	var spans []*trace.Span
	for i := range all {
		spans = append(spans, spansOf(&all[i])...)
	}
	o := &x.options
	return &collector.ExportTraceServiceRequest{ResourceSpans: []*trace.ResourceSpans{{
		Resource:   &resource.Resource{Attributes: []*common.KeyValue{text("service.name", "tandem"), text("service.version", o.Version), text("k8s.node.name", o.Node), text("tandem.mode", o.Mode)}},
		ScopeSpans: []*trace.ScopeSpans{{Scope: &common.InstrumentationScope{Name: "tandem", Version: o.Version}, Spans: spans}},
	}}}
}

// spansOf are the trace of a change that was applied: one span for all of it, and in it
// one for its way here, if the object records when it was written, and for each stage.
// The last one ends when the first packet can meet it.
func spansOf(e *history.Entry) []*trace.Span {
	s := e.Sync
	traceID := random(16)
	change := &trace.Span{
		TraceId: traceID, SpanId: random(8), Name: e.Kind + " " + e.Verb, Kind: trace.Span_SPAN_KIND_CONSUMER,
		Attributes: []*common.KeyValue{
			text("tandem.object", e.Object), text("tandem.service", e.Service), number("tandem.resource_version", e.Version),
			number("tandem.sync", s.Number), number("tandem.sync.changes", s.Changes),
			number("tandem.created", s.Created), number("tandem.replaced", s.Replaced), number("tandem.deleted", s.Deleted),
		},
	}
	if s.Err != "" || s.Failed > 0 {
		change.Status = &trace.Status{Code: trace.Status_STATUS_CODE_ERROR, Message: s.Err}
	}
	spans := []*trace.Span{change}
	part := func(name string, from, to time.Time) {
		spans = append(spans, &trace.Span{
			TraceId: traceID, SpanId: random(8), ParentSpanId: change.SpanId, Name: name, Kind: trace.Span_SPAN_KIND_INTERNAL,
			StartTimeUnixNano: nanoseconds(from), EndTimeUnixNano: nanoseconds(to),
		})
	}
	begin, at := e.At.Add(-e.Age.Duration()), e.At
	if e.Age > 0 {
		part("watch", begin, at)
	}
	for stage := range history.Stages {
		end := at.Add(s.Stages.Of(stage).Duration())
		part(stage.String(), at, end)
		at = end
	}
	change.StartTimeUnixNano, change.EndTimeUnixNano = nanoseconds(begin), nanoseconds(at)
	return spans
}

func nanoseconds(t time.Time) uint64 { return uint64(t.UnixNano()) }

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return b
}

func text(key, value string) *common.KeyValue {
	return &common.KeyValue{Key: key, Value: &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: value}}}
}

func number[N int | uint64](key string, n N) *common.KeyValue {
	return &common.KeyValue{Key: key, Value: &common.AnyValue{Value: &common.AnyValue_IntValue{IntValue: int64(n)}}}
}
