// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"mime"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	restwatch "k8s.io/client-go/rest/watch"
)

// A start reads all objects as events. client-go's decoder copies each of them twice before it decodes
// it into a new object, where endpoints are appended to an array that grows each time; and half of
// what it decodes is never read. In protobuf, which all kinds but custom resources have, an event
// is decoded from where it was read into the object of the one before, with its array and maps.

// eventDecoder reads the events of a watch. An object is valid until the next event is read, and of one that
// is deleted there may be the metadata alone; the error is io.EOF, or one like it, where the watch has ended.
type eventDecoder interface {
	Decode() (apiwatch.EventType, runtime.Object, error)
}

// decoder returns what reads the events of a watch.
func (f *follower) decoder(body io.ReadCloser, content string) (eventDecoder, error) {
	media, params, err := mime.ParseMediaType(content)
	if err != nil {
		media = "" // the server's default
	}
	object, event, framer, err := f.decoders.StreamDecoder(media, params)
	if err != nil {
		return nil, err
	}
	if media == runtime.ContentTypeProtobuf {
		return newProtobufEvents(body, &f.kind, object), nil
	}
	return restwatch.NewDecoder(streaming.NewDecoder(framer.NewFrameReader(body), event), object), nil
}

// nextEvent reads an event of a watch; the error is io.EOF where that has ended. It is read where it is used:
// client-go's StreamWatcher has a goroutine of its own for that, so that each event wakes one more.
func nextEvent(from eventDecoder) (e apiwatch.Event, err error) {
	e.Type, e.Object, err = from.Decode()
	switch {
	case err == nil:
		return e, nil
	case utilnet.IsProbableEOF(err), utilnet.IsTimeout(err):
		return e, io.EOF
	}
	return e, fmt.Errorf("%w: %w", errUnread, err)
}

// protobufEvents is an eventDecoder.
//
//	length  WatchEvent ─ type
//	                   └ RawExtension ─ "k8s" 0 Unknown ─ apiVersion, kind
//	                                                    └ object
type protobufEvents struct {
	in            *bufio.Reader
	version, kind string // of the objects that are decoded here
	empty         func() runtime.Object
	others        runtime.Decoder // of all others, such as a Status

	frame  []byte         // used again
	object runtime.Object // used again
}

// readAhead is how many bytes are read at a time: some ten events.
const readAhead = 16 << 10

func newProtobufEvents(body io.Reader, k *kind, others runtime.Decoder) *protobufEvents {
	return &protobufEvents{
		in: bufio.NewReaderSize(body, readAhead), version: k.version.String(), kind: k.typeName(), empty: k.empty, others: others,
	}
}

// The numbers of fields of a WatchEvent, and of the RawExtension in it.
const (
	eventType    = 1
	eventObject  = 2
	extensionRaw = 1
)

func (p *protobufEvents) Decode() (t apiwatch.EventType, o runtime.Object, err error) {
	if err := p.read(); err != nil {
		return "", nil, err
	}
	if t, o, err = p.event(); err != nil { // wrapped: what is cut short within an event is no end of the watch
		return "", nil, fmt.Errorf("event of %s %s: %w", p.version, p.kind, err)
	}
	return t, o, nil
}

// event decodes the event in frame.
func (p *protobufEvents) event() (t apiwatch.EventType, o runtime.Object, err error) {
	var object []byte
	err = eachField(p.frame, func(number protowire.Number, value []byte) error {
		switch number {
		case eventType:
			t, err = parseEventType(value)
			return err
		case eventObject:
			return eachField(value, func(number protowire.Number, value []byte) error {
				if number == extensionRaw {
					object = value
				}
				return nil
			})
		}
		return nil
	})
	if err == nil {
		o, err = p.decode(object, t == apiwatch.Deleted)
	}
	return t, o, err
}

// parseEventType makes no string of what is one of five.
func parseEventType(text []byte) (apiwatch.EventType, error) {
	for _, t := range []apiwatch.EventType{apiwatch.Added, apiwatch.Modified, apiwatch.Deleted, apiwatch.Bookmark, apiwatch.Error} {
		if string(text) == string(t) {
			return t, nil
		}
	}
	return "", fmt.Errorf("unknown type %q", text[:min(len(text), maxText)])
}

// decode decodes the object of an event, of one that is gone only which it was.
func (p *protobufEvents) decode(object []byte, gone bool) (runtime.Object, error) {
	payload, ok := bytes.CutPrefix(object, []byte(protobufPrefix))
	if !ok {
		return nil, errors.New("its object is not in protobuf")
	}
	u, err := parseUnknown(payload)
	if err != nil {
		return nil, err
	}
	if string(u.version) != p.version || string(u.kind) != p.kind {
		return runtime.Decode(p.others, object)
	}
	if gone {
		u.raw = metadataOf(u.raw)
	}
	hideUnread(u.raw)
	p.object = p.blank()
	m, ok := p.object.(interface{ Unmarshal([]byte) error })
	if !ok {
		return nil, fmt.Errorf("%T has no form in protobuf", p.object)
	}
	return p.object, m.Unmarshal(u.raw)
}

// mostKept bounds the endpoints for which room is kept, and mostPairs the labels; controllers put 100
// endpoints into a slice.
const (
	mostKept  = 1000
	mostPairs = 64
)

// blank returns an empty object, which may be that of the event before. Its labels, annotations and
// selector may be empty maps instead of none: to make new ones is half of an object's garbage.
func (p *protobufEvents) blank() runtime.Object {
	o, ok := p.object.(interface {
		runtime.Object
		metav1.Object
		Reset()
	})
	if !ok {
		return p.empty()
	}
	labels, annotations := emptied(o.GetLabels()), emptied(o.GetAnnotations())
	switch typed := p.object.(type) {
	case *discoveryv1.EndpointSlice:
		room := typed.Endpoints[:0]
		o.Reset()
		if cap(room) <= mostKept {
			typed.Endpoints = room
		}
	case *corev1.Service:
		selector := emptied(typed.Spec.Selector)
		o.Reset()
		typed.Spec.Selector = selector
	default:
		o.Reset()
	}
	o.SetLabels(labels)
	o.SetAnnotations(annotations)
	return o
}

// emptied is a map for the next object; nil for a new one.
func emptied(pairs map[string]string) map[string]string {
	if len(pairs) > mostPairs {
		return nil
	}
	clear(pairs)
	return pairs
}

// read reads the next event into frame.
func (p *protobufEvents) read() error {
	var length [4]byte
	if _, err := io.ReadFull(p.in, length[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(length[:])
	if n > maxEvent {
		return tooLong(maxEvent, incompleteEvent)
	}
	if uint32(cap(p.frame)) < n || cap(p.frame) > readAhead { // a large one is not kept
		p.frame = make([]byte, 0, max(n, 4<<10))
	}
	p.frame = p.frame[:n]
	_, err := io.ReadFull(p.in, p.frame)
	return err
}

// The numbers of fields of every object, and of those of its metadata that are never read; the last
// two are of none, and take one byte and two.
const (
	objectMeta          = 1
	metaGenerateName    = 2
	metaOwnerReferences = 13
	metaManagedFields   = 17
	metaUnknown         = 15
	metaUnknownLong     = 2047
)

// metadataOf is the part of an object in protobuf that has its metadata.
func metadataOf(object []byte) []byte {
	for rest := object; ; {
		number, _, n := protowire.ConsumeField(rest)
		switch {
		case n < 0: // Unmarshal finds the error, if it is one
			return object
		case number == objectMeta:
			return rest[:n]
		}
		rest = rest[n:]
	}
}

// hideUnread changes an object in protobuf so that unused fields of its metadata are not decoded:
// its number becomes one that no field has.
func hideUnread(object []byte) {
	_ = eachField(object, func(number protowire.Number, value []byte) error { // an error is Unmarshal's to find
		for number == objectMeta && len(value) > 0 {
			field, kind, n := protowire.ConsumeField(value)
			if n < 0 {
				return protowire.ParseError(n)
			}
			switch field {
			case metaGenerateName, metaOwnerReferences:
				protowire.AppendTag(value[:0], metaUnknown, kind)
			case metaManagedFields:
				protowire.AppendTag(value[:0], metaUnknownLong, kind)
			}
			value = value[n:]
		}
		return nil
	})
}
