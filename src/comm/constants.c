/* MPI_IN_PLACE is a macro with a cast, and a different one in every MPI library. */
#include <mpi.h>

const void *const dltrain_mpi_in_place = MPI_IN_PLACE;
