// Package model holds the types of the GraphQL schema. gqlgen generates everything else in it; graphapi fills the types.
package model
