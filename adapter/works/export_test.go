package works

import "atoll.dev/adapter"

// AnnotationGeneration is annotationGeneration, for the external tests.
const AnnotationGeneration = annotationGeneration

// MetadataText is metadataText.
func MetadataText(o adapter.Object, name string) string { return metadataText(o, name) }

// AssumeOriginal has the transport take its server for the original Maestro.
func (w *Works) AssumeOriginal() { w.withoutAdditions = true }
