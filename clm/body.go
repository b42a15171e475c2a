package clm

import (
	"net/http"

	"atoll.dev/internal/jsonvalue"
	"atoll.dev/internal/rest"
)

// readBody reads and decodes the body of a request as rest.ReadJSON does.
func readBody[T any](r *http.Request, limit int64) (v T, err error) {
	data, err := rest.ReadBody(r, limit)
	if err != nil {
		return v, err
	}
	return decodeBody[T](data)
}

// decodeBody decodes the body of a request as rest.DecodeJSON does. A usual body takes half of the time.
func decodeBody[T any](data []byte) (v T, err error) {
	if rest.CheckStorable(data) == nil && jsonvalue.DecodeInto(data, &v) == nil {
		return v, nil
	}
	var again T // v may have some members
	err = rest.DecodeJSON(data, &again)
	return again, err
}
