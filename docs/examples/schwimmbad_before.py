"""Tasks by schwimmbad's MPIPool: rank 0 hands them out, the other ranks run them, and end within the constructor."""

from schwimmbad import MPIPool


def square(x):
    return x * x


if __name__ == "__main__":
    with MPIPool() as pool:
        print(pool.map(square, [1, 2, 3]))
