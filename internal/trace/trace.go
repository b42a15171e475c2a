// Package trace records the way of one request through the region's processes, as
// OpenTelemetry spans, and sends them to an OTLP collector. The
// context of a trace travels as W3C traceparent: in HTTP headers, in the
// CloudEvent attribute of that name, and beside a resource in CLM.
//
// A process opens one Tracer and passes it to its parts. A nil *Tracer is switched
// off: its methods record nothing and allocate nothing, so callers need no check for
// nil. There is no global tracer.
//
// An HTTP server gives Tracer.StartRequest to rest.Options.Trace. An HTTP client wraps its
// transport by Tracer.Transport. A receiver of messages continues their traces:
//
//	ctx = trace.WithParent(ctx, event.Traceparent)
//	ctx, span := tracer.Start(ctx, "reconcile", trace.Consumer, trace.String("adapter", name))
//	defer func() { span.End(err) }()
//
// A sender of messages writes trace.Parent(ctx) into them.
//
// Everybody may import it. It imports no package of ours.
package trace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Options are the parameters of Open. Service is needed.
type Options struct {
	Service string // its name in traces; OTEL_SERVICE_NAME replaces it
	Version string
	Logger  *slog.Logger // logs exports that fail; default: discard
}

// Tracer makes spans and sends them, in batches, to the collector that the
// standard variables OTEL_EXPORTER_OTLP_* name (default: localhost). It drops spans
// that it cannot send. OTEL_TRACES_SAMPLER selects the traces (default: all, except
// those that the caller of a request has marked as not sampled).
type Tracer struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
}

// Open makes a tracer. It connects to nothing yet.
func Open(ctx context.Context, o Options) (*Tracer, error) {
	exporter, err := newExporter(ctx)
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	// Attributes of a later option replace those of an earlier one.
	described, err := resource.New(ctx, resource.WithAttributes(attribute.String("service.name", o.Service),
		attribute.String("service.version", o.Version)),
		resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("tracing: OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	provider := sdk.NewTracerProvider(sdk.WithResource(described), sdk.WithBatcher(loggingExporter{exporter, o.Logger},
		sdk.WithBatchTimeout(time.Second)))
	return &Tracer{provider, provider.Tracer("atoll.dev")}, nil
}

func newExporter(ctx context.Context) (sdk.SpanExporter, error) {
	protocol := os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
	if protocol == "" {
		protocol = os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL")
	}
	var client otlptrace.Client
	switch protocol {
	case "", "http/protobuf":
		client = otlptracehttp.NewClient()
	case "grpc":
		client = otlptracegrpc.NewClient()
	default:
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL %q is neither http/protobuf nor grpc", protocol)
	}
	return otlptrace.New(ctx, client)
}

// loggingExporter logs the errors of an export, which the provider would pass to a global
// handler.
type loggingExporter struct {
	sdk.SpanExporter
	log *slog.Logger
}

func (l loggingExporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	if err := l.SpanExporter.ExportSpans(ctx, spans); err != nil {
		l.log.LogAttrs(ctx, slog.LevelDebug, "spans not exported", slog.Int("spans", len(spans)),
			slog.Any("error", err))
	}
	return nil
}

// closeTimeout bounds how long Close sends the last spans.
const closeTimeout = 2 * time.Second

// Close sends the remaining spans and ends the Tracer.
func (t *Tracer) Close() error {
	if t == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("tracing: %w", err)
	}
	return nil
}

// Kind is the kind of a span.
type Kind int

// The kinds, OpenTelemetry's.
const (
	Internal Kind = iota // neither a request nor a message
	Server               // answers a request
	Client               // sends a request
	Producer             // sends a message
	Consumer             // processes a message
)

var kinds = map[Kind]trace.SpanKind{
	Internal: trace.SpanKindInternal,
	Server:   trace.SpanKindServer,
	Client:   trace.SpanKindClient,
	Producer: trace.SpanKindProducer,
	Consumer: trace.SpanKindConsumer,
}

// Attr is an attribute of a span. It must not contain secrets.
type Attr = attribute.KeyValue

// String makes an attribute.
func String(key, value string) Attr { return attribute.String(key, value) }

// Int makes an attribute.
func Int(key string, value int64) Attr { return attribute.Int64(key, value) }

// Span is one operation with the times of its begin and its end. A nil Span records nothing.
type Span struct{ span trace.Span }

// Start begins a span below the one of ctx, or below ctx's remote parent. The
// span must be ended.
func (t *Tracer) Start(ctx context.Context, name string, kind Kind, attrs ...Attr) (context.Context, *Span) {
	if t == nil {
		return ctx, nil
	}
	ctx, span := t.tracer.Start(ctx, name, trace.WithSpanKind(kinds[kind]), trace.WithAttributes(attrs...))
	return ctx, &Span{span}
}

// Set adds attributes.
func (s *Span) Set(attrs ...Attr) {
	if s != nil {
		s.span.SetAttributes(attrs...)
	}
}

// End ends the span; err, if any, is why its work failed.
func (s *Span) End(err error) {
	if s == nil {
		return
	}
	if err != nil {
		s.span.SetStatus(codes.Error, err.Error())
	}
	s.span.End()
}

const traceparentHeader = "traceparent"

// Parent returns the W3C traceparent of the span of ctx, "" when ctx has none.
func Parent(ctx context.Context) string {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return ""
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier[traceparentHeader]
}

// WithParent returns ctx with the span that a W3C traceparent names as its parent. It returns
// ctx unchanged when the traceparent is "" or not well-formed.
func WithParent(ctx context.Context, traceparent string) context.Context {
	if traceparent == "" {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{traceparentHeader: traceparent})
}
